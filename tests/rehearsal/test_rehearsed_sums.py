"""Gradients' sums in several phases: what a plan prices is what its program issues, on every rank of a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.options import Parallelism, Training
from autoplan.rehearsal import rehearse
from autoplan.rehearsal.pricing.price_check import balance
from autoplan.rehearsal.pricing.priced_plan import PlanPrices
from tests.support.rehearsed_llama import TRAINING, rehearsed
from tests.support.sampling import sampled

KINDS = {
    "tree": ("2x2 cpu", Parallelism(dp=4, tp=1, pp=1, micro_batch=1, all_reduce="tree")),
    "tree, tensor": (
        "2x2 cpu", Parallelism(dp=2, tp=2, pp=1, micro_batch=2, sequence_parallel=True, all_reduce="tree"),
    ),
    "two levels": ("2x2 cpu", Parallelism(dp=4, tp=1, pp=1, micro_batch=1, all_reduce="hierarchical")),
    "two levels on GPUs": ("2x2 h100-sxm", Parallelism(dp=4, tp=1, pp=1, micro_batch=1, all_reduce="hierarchical")),
    "two levels, tensor": (
        "2x4 h100-sxm",
        Parallelism(dp=4, tp=2, pp=1, micro_batch=1, sequence_parallel=True, all_reduce="hierarchical"),
    ),
    "two levels, stages": (
        "4x2 cpu", Parallelism(dp=4, tp=1, pp=2, micro_batch=1, pipeline_schedule="1f1b", all_reduce="hierarchical"),
    ),
    "by size": ("2x2 cpu", Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=1)),
}  # fmt: skip
PHASES = {
    "tree": {"tree all-reduce": 1}, "hierarchical": {"reduce-scatter": 1, "all-reduce": 1, "all-gather": 1},
}  # fmt: skip


@pytest.mark.parametrize("kind", sampled(KINDS, ["tree", "two levels"]))
def test_every_call_is_priced_and_every_priced_call_is_made(kind: str, tmp_path: Path) -> None:
    cluster, parallelism = KINDS[kind]
    training = TRAINING if "cpu" not in cluster else Training(learning_rate=1e-3)
    devices = (parallelism.dp or 1) * (parallelism.tp or 1) * (parallelism.pp or 1)
    found = rehearsed(tmp_path / "out", parallelism, devices, training=training, cluster=cluster)
    plan = PlanPrices.of(found.record)
    chosen = found.record.chosen
    assert plan.found.step_s == pytest.approx(chosen.predicted.step_time_s, rel=1e-12)
    rule = chosen.parallelism.all_reduce or "ring"
    sums = [c for c in chosen.predicted.collectives if c.where == "gradients" and "dp" in c.axis]
    for phase in PHASES[rule.rpartition("<")[2]]:
        assert any(c.kind == phase for c in sums)
    others = [(found.folder, rank, None, False) for rank in range(devices) if rank not in found.traces]
    for trace in (*found.traces.values(), *rehearse.each_apart(others)):
        assert not isinstance(trace, str), trace
        account = balance(plan, trace)
        assert account.holds, str(account)
