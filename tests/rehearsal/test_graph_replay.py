"""A rehearsal that repeats the runs of compiled graphs finds what one finds that runs them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from autoplan.options import Parallelism, Training
from autoplan.rehearsal import rank_workers
from autoplan.rehearsal.device import compiled, graph_replay
from autoplan.rehearsal.records import RankTrace
from tests.support.planning import parallelize_unproved
from tests.support.rehearsed_llama import llama, mixtral
from tests.support.rehearsing import Forks
from tests.support.sampling import slow

PLANS = {
    "tensor, selective": (Parallelism(dp=1, tp=2, pp=1, micro_batch=4, recompute="selective"), 2, 0),
    "pipeline, tensor, selective": (
        Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b", recompute="selective"), 4, 2,
    ),
    "zero 3, in full": (Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1, recompute="full"), 4, 0),
    "ring": (Parallelism(dp=1, cp=2, tp=2, pp=1, micro_batch=4, cp_attention="ring", sequence_parallel=True), 4, 0),
    "experts, counted on the host": (Parallelism(dp=4, ep=2, tp=1, pp=1, zero=1, micro_batch=1), 2, 1),
}  # fmt: skip
"""(what is pinned, layers, a rank)"""
QUICK = ("experts, counted on the host",)


def traced(asked: tuple[bool, Path, int]) -> tuple[RankTrace | str, int]:
    """One rank's trace, with repeated runs or without, and how often one was repeated."""
    repeats, folder, rank = asked
    runs, again = [0], graph_replay.repeat

    def runner(graph: Any, recorder: Any) -> Any:
        return graph_replay.graph_runner(graph, recorder if repeats else None)

    def counted(*given: Any) -> Any:
        runs[0] += 1
        return again(*given)

    with patch.object(compiled, "graph_runner", runner), patch.object(graph_replay, "repeat", counted):
        return rank_workers.alone((folder, rank, None, True)), runs[0]


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in PLANS])
def test_a_repeated_run_is_told_as_one_that_ran(name: str, forks: Forks, tmp_path: Path) -> None:
    pinned, layers, rank = PLANS[name]
    devices = pinned.dp * pinned.tp * pinned.pp * (pinned.cp or 1)
    ids = torch.zeros(8, 32, dtype=torch.int64)
    model = mixtral(layers) if pinned.ep else llama(layers)
    plan = parallelize_unproved(
        model, f"1x{devices} h100-sxm", {"input_ids": ids, "labels": ids}, parallelism=pinned, effort="fast",
        training=Training(optimizer="adamw", precision="bf16-mixed", compile=True),
    )  # fmt: skip
    folder = plan.export(tmp_path / "out")
    (again, count), (run, none) = forks(traced, [(repeats, folder, rank) for repeats in (True, False)])
    assert isinstance(again, RankTrace) and isinstance(run, RankTrace), (again, run)
    assert count > 0 == none
    assert again.calls == run.calls
    assert (again.peak, again.held, again.curve) == (run.peak, run.held, run.curve)
    assert again.findings == run.findings
