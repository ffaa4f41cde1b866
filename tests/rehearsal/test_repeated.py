"""A rehearsal that repeats the runs of compiled graphs finds what one finds that runs them all."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autoplan.options import Parallelism, Training
from autoplan.rehearsal.records import RankTrace
from tests.support.planning import parallelize_unproved
from tests.support.rehearsed_llama import llama
from tests.support.sampling import slow

BOTH = """
import multiprocessing, pickle, sys
from pathlib import Path
from unittest.mock import patch
from autoplan.rehearsal import ranks
from autoplan.rehearsal.device import compiled, repeated

def run(asked):
    repeats, *rest = asked
    def runner(graph, recorder):
        return repeated.graph_runner(graph, recorder if repeats else None)
    runs, again = [0], repeated.repeat
    def counted(*given):
        runs[0] += 1
        return again(*given)
    with patch.object(compiled, "graph_runner", runner), patch.object(repeated, "repeat", counted):
        return ranks.alone((Path(sys.argv[1]), *rest)), runs[0]

with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    found = pool.map(run, [(repeats, int(sys.argv[2]), None, True) for repeats in (True, False)], chunksize=1)
sys.stdout.buffer.write(pickle.dumps(found))
"""
PLANS = {
    "tensor, selective": (Parallelism(dp=1, tp=2, pp=1, micro_batch=4, recompute="selective"), 2, 0),
    "pipeline, tensor, selective": (
        Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b", recompute="selective"), 4, 2,
    ),
    "zero 3, in full": (Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1, recompute="full"), 4, 0),
    "ring": (Parallelism(dp=1, cp=2, tp=2, pp=1, micro_batch=4, cp_attention="ring", sequence_parallel=True), 4, 0),
}  # fmt: skip
"""(what is pinned, layers, a rank)"""
QUICK = "tensor, selective"


@pytest.mark.parametrize("name", [name if name == QUICK else slow(name) for name in PLANS])
def test_a_repeated_run_is_told_as_one_that_ran(name: str, tmp_path: Path) -> None:
    pinned, layers, rank = PLANS[name]
    devices = pinned.dp * pinned.tp * pinned.pp * (pinned.cp or 1)
    ids = torch.zeros(8, 32, dtype=torch.int64)
    plan = parallelize_unproved(
        llama(layers), f"1x{devices} h100-sxm", {"input_ids": ids, "labels": ids}, parallelism=pinned, effort="fast",
        training=Training(optimizer="adamw", precision="bf16-mixed", compile=True),
    )  # fmt: skip
    folder = plan.export(tmp_path / "out")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-c", BOTH, str(folder), str(rank)]
    said = subprocess.run(command, capture_output=True, env=environment, check=True).stdout
    (repeated, count), (run, none) = pickle.loads(said)
    assert isinstance(repeated, RankTrace) and isinstance(run, RankTrace), (repeated, run)
    assert count > 0 == none
    assert repeated.calls == run.calls
    assert (repeated.peak, repeated.held, repeated.curve) == (run.peak, run.held, run.curve)
    assert repeated.faults == run.faults
