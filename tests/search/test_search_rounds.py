"""Numbers of stages on a rank that aren't powers of two."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.options import Parallelism, Training
from autoplan.search import search
from tests.support.hand_made import llama
from tests.support.planning import alone

PINNED = {"dp": 1, "tp": 1, "pp": 2, "micro_batch": 1, "pipeline_schedule": "interleaved"}


def step_s(layers: int, **more: int) -> tuple[float, int, tuple[str, ...]]:
    model = llama(layers=layers, batch=16, seq=512, hidden=1024, ffn=2816, heads=16, kv=16)
    cluster = ClusterSpec.parse("1x2 a100-sxm-80gb")
    with alone():
        chosen, _, report = search(model, cluster, Training(), Parallelism(**PINNED, **more))
    count = chosen.parallelism.virtual_stages
    assert count is not None and len(chosen.stages) == 2 * count
    return chosen.predicted.step_time_s, count, report.left_out


def test_those_between_are_found_where_layers_divide_by_them() -> None:
    """Ten layers on ten stages: four stages a rank have one layer or two."""
    free_s, count, left_out = step_s(10)
    assert count == 5 and not any("stages on a rank" in told for told in left_out)
    assert free_s < step_s(10, virtual_stages=4)[0]


def test_layers_that_do_not_divide_are_no_slower_than_by_any_pin() -> None:
    free_s, _, _ = step_s(7)
    assert free_s <= min(step_s(7, virtual_stages=count)[0] for count in (2, 3, 4)) * 1.005
