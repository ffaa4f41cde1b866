"""One model on several clusters: sorted, traced once, what doesn't fit named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autoplan
from autoplan import Comparison, Training
from autoplan.errors import ClusterError, InputsError, ParallelismError
from autoplan.trace.pipeline import trace


class Tokens(nn.Module):
    """The next of 32 tokens from this one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(ids).flatten(0, 1), labels.flatten())


IDS = (torch.zeros(16, 8, dtype=torch.int64), torch.zeros(16, 8, dtype=torch.int64))
CLUSTERS = ["1x1 cpu", "1x2 h100-sxm", "1x2 cpu 1e-05GB"]


@pytest.fixture(scope="module")
def found() -> Comparison:
    return autoplan.compare(Tokens(), CLUSTERS, IDS, training=Training())


def test_the_most_tokens_come_first_and_what_does_not_fit_last(found: Comparison) -> None:
    assert [row.cluster for row in found.rows] == ["1x2 h100-sxm", "1x1 cpu", "1x2 cpu 1e-05GB"]
    first, second, last = found.rows
    assert first.tokens_per_s and second.tokens_per_s and first.tokens_per_s > second.tokens_per_s
    assert last.found is None and last.why_not.startswith("does not fit: ") and last.tokens_per_device_hour is None
    assert len(found.plans) == 2 and found.plans[0].predicted.step_time_s == first.step_time_s


def test_rates_are_of_the_batch_and_of_one_device(found: Comparison) -> None:
    row = found.rows[0]
    assert row.tokens_per_s == pytest.approx(16 * 8 / row.step_time_s)
    assert row.tokens_per_device_s == pytest.approx(row.tokens_per_s / 2)
    assert row.tokens_per_device_hour == pytest.approx(row.tokens_per_s * 1800)
    told = found.to_dict()
    assert told["elements"] == "tokens" and told["rows"][0]["tokens_per_device_hour"] == row.tokens_per_device_hour
    assert "found" not in told["rows"][0] and told["rows"][2]["step_time_s"] is None


def test_the_table_has_a_line_for_each(found: Comparison) -> None:
    lines = str(found).splitlines()
    assert lines[0] == "Tokens on 3 clusters" and "tokens/s" in lines[1] and "/device-hour" in lines[1]
    assert lines[2].split()[:2] == ["1x2", "h100-sxm"] and max(map(len, lines)) <= 130


def test_a_plan_is_compared_as_its_module_is(found: Comparison) -> None:
    plan = autoplan.parallelize(Tokens(), "1x1 cpu", IDS, training=Training())
    again = autoplan.compare(plan, CLUSTERS)
    assert again == found
    assert autoplan.compare(plan, ["1x2 cpu"], batch=8).rows[0].tokens_per_s


def test_traced_once_for_each_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def counted(*args: object, **options: object) -> object:
        traced.append(options["dtype"])
        return trace(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("autoplan.compile.trace", counted)
    autoplan.compare(Tokens(), ["1x1 cpu", "1x2 cpu", "1x1 h100-sxm"], IDS, effort="fast")
    assert traced == ["float32", "bfloat16"]


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(ClusterError, match="there is nothing to compare"):
        autoplan.compare(Tokens(), [], IDS)
    with pytest.raises(ClusterError, match="'1x1 cpu': expected a list of clusters"):
        autoplan.compare(Tokens(), "1x1 cpu", IDS)
    with pytest.raises(ParallelismError, match="no such system"):
        autoplan.compare(Tokens(), ["1x1 cpu"], IDS, parallelism="sideways")
    with pytest.raises(InputsError, match="a module's batch is its example_inputs"):
        autoplan.compare(Tokens(), ["1x1 cpu"], IDS, batch=4)
    with pytest.raises(InputsError, match=r"a model of type str: it is no torch\.nn\.Module"):
        autoplan.compare("llama", ["1x1 cpu"], IDS)  # type: ignore[arg-type]
    with pytest.raises(InputsError, match="write cluster_specs="):
        autoplan.compare(Tokens(), clusters=["1x1 cpu"])  # type: ignore[call-arg]
    with pytest.raises(InputsError, match="a plan has its own inputs and loss"):
        autoplan.compare(autoplan.parallelize(Tokens(), "1x1 cpu", IDS), ["1x2 cpu"], IDS)


def test_a_cluster_on_which_the_pins_cannot_be_says_why(tmp_path: Path) -> None:
    found = autoplan.compare(Tokens(), ["1x3 cpu", "1x2 cpu"], IDS, parallelism=autoplan.Parallelism(dp=2, tp=1, pp=1))
    assert found.rows[0].cluster == "1x2 cpu" and "multiply to 2, and the cluster has 3" in found.rows[1].why_not
