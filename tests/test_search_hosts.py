"""What lies in the host's memory is the search's to decide where nothing is pinned."""

from __future__ import annotations

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError
from autoplan.options import Inference, Parallelism, Training
from autoplan.search import search
from autoplan.search.choice import Chosen
from autoplan.search.hosts import hosted
from autoplan.search.work import begin
from tests.hand_made import llama

MIXED = Training(precision="bf16-mixed")
MODEL = llama(layers=32, batch=256, seq=2048, hidden=4096, ffn=14336, heads=32, kv=8, vocab=128256, dtype="bfloat16")
SHORT = "1x2 h100-sxm"


def plan(cluster: str, **pinned: str) -> Chosen:
    chosen, _, _ = search(MODEL, ClusterSpec.parse(cluster), MIXED, Parallelism(**pinned))  # type: ignore[arg-type]
    return chosen


def test_the_optimizer_goes_to_the_host_where_that_is_quicker() -> None:
    free, kept, ample = plan(SHORT), plan(SHORT, offload="none"), plan("2x8 h100-sxm")
    assert free.parallelism.offload == "optimizer" and kept.parallelism.offload is None
    assert free.predicted.step_time_s < 0.98 * kept.predicted.step_time_s
    assert ample.parallelism.offload is None


def test_what_fits_only_with_the_host_is_a_remedy() -> None:
    with pytest.raises(DoesNotFitError, match="offload='optimizer'"):
        plan("1x1 h100-sxm")


@pytest.mark.parametrize(
    ("cluster", "training", "pinned"),
    [
        (SHORT, MIXED, Parallelism(offload="none")),
        (SHORT, MIXED, Parallelism(micro_batch=1)),
        (SHORT, Inference(), Parallelism()),
        ("1x4 cpu", Training(), Parallelism()),
    ],
    ids=str,
)
def test_the_host_is_left_alone(cluster: str, training: Training | Inference, pinned: Parallelism) -> None:
    model = llama(batch=8, seq=32, hidden=64, ffn=128, vocab=256, layers=4)
    assert not hosted(begin(model, ClusterSpec.parse(cluster), training, pinned), pinned)


def test_every_way_to_use_the_host_is_tried() -> None:
    model = llama(batch=8, seq=32, hidden=64, ffn=128, vocab=256, layers=4)
    found = hosted(begin(model, ClusterSpec.parse(SHORT), MIXED, Parallelism()), Parallelism())
    assert {(s.offload, s.zero) for s in found if s.dp == 2} == {
        *(("optimizer", zero) for zero in range(4)), ("parameters", 3), *(("activations", zero) for zero in range(4))
    }  # fmt: skip
    assert {s.pp for s in found} == {1}
