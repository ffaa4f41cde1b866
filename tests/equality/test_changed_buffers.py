"""Buffers that forward changes: the same as on one device after steps, whatever is split, recomputed or in flight."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism, Training
from autoplan.trace.pipeline import trace
from autoplan.verify.local_ranks import RankPool
from tests.support.brought import MODELS, ROWS, WIDTH, hidden, ids
from tests.support.brought_buffers import Averaged, Centred, Layers
from tests.support.forwards import BOUND, evaluate, planned, relative
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow


class BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


APART = Training(statistics="microbatch")
CASES = [
    (BatchNormed, Parallelism(dp=4, tp=1, pp=1, recompute="full"), Training()),
    slow((BatchNormed, Parallelism(dp=1, tp=4, pp=1, recompute="selective"), Training())),
    (BatchNormed, Parallelism(dp=2, tp=1, pp=2, micro_batch=2, recompute="full"), APART),
    slow((Averaged, Parallelism(dp=4, tp=1, pp=1, zero=3, recompute="full"), Training())),
    slow((Averaged, Parallelism(dp=2, tp=1, pp=2, micro_batch=1, recompute="full"), APART)),
    (Averaged, Parallelism(dp=1, tp=2, pp=2, recompute="selective"), Training()),
]


@pytest.mark.parametrize(("layer", "parallelism", "training"), CASES)
@pytest.mark.usefixtures("verified_in_pool")
def test_they_change_once_though_forward_runs_twice(
    layer: Callable[[], nn.Module], parallelism: Parallelism, training: Training
) -> None:
    torch.manual_seed(0)
    batch = (hidden(), ids(ROWS, below=4))
    plan = parallelize_alone(
        Layers(layer), "1x4 cpu", batch, loss_fn=F.cross_entropy, parallelism=parallelism, training=training,
        effort="fast",
    )  # fmt: skip
    if parallelism.recompute == "full":
        assert any(stage.recompute for stage in plan.record.chosen.stages)
    assert plan.verify().passed


def test_what_reads_and_what_moves_one_is_never_cut_apart() -> None:
    """Two stages would each have it, and one of them would read for ever what it was at the start."""
    batch = (hidden(), ids(ROWS, below=4))
    with pytest.raises(ParallelismError, match="the model is a chain of 1 parts"):
        parallelize_alone(
            Centred(), "1x4 cpu", batch, loss_fn=F.cross_entropy, effort="fast", parallelism=Parallelism(pp=2)
        )
    assert len(trace(Layers(Averaged), batch, loss_fn=F.cross_entropy, training=True).segments) == 5


@pytest.mark.parametrize("name", ["averaged_layers", "codebook"])
def test_an_evaluation_moves_none(pool: RankPool, tmp_path: Path, name: str) -> None:
    """Not even where the module moves its own in evaluation, too."""
    module, batch, loss_fn = MODELS[name]()
    plan = planned(tmp_path / "out", module, batch, loss_fn, dp=2, tp=2, pp=1)
    batches = [plan.batch, plan.rows(5), plan.batch]
    expected = [replace(plan, module=copy.deepcopy(plan.module)).loss(batch) for batch in batches]
    for found in pool.run(evaluate, str(plan.folder), plan.weights, batches):
        assert max(map(relative, found, expected)) < BOUND
