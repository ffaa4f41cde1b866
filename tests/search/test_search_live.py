"""What a block is said to hold while it runs, against what it holds: storages followed through programs on one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from autoplan.cost.operators.eager_temporaries import COMPOSED, HOLDS, UNWEIGHTED
from autoplan.options import Parallelism, Training
from autoplan.verify.local_ranks import RankPool
from tests.bench.memory.measured import peaks_of_rank
from tests.bench.memory.watch import Tensors
from tests.support import zoo
from tests.support.planning import parallelize_unproved
from tests.support.sampling import slow

ROWS, WIDTH = 512, 64
NEAR = 0.1


def made(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


OPERATORS = {
    "aten.rms_norm.default": lambda x: F.rms_norm(x, (WIDTH,), torch.ones(WIDTH, requires_grad=True), 1e-6),
    "aten.pow.Tensor_Scalar": lambda x: x.pow(3.0),
    "aten.square.default": torch.square,
    "aten.cos.default": torch.cos,
    "aten.sin.default": torch.sin,
    "aten.rsqrt.default": torch.rsqrt,
    "aten.sqrt.default": torch.sqrt,
    "aten.div.Tensor": lambda x: torch.div(x, made(ROWS, WIDTH)),
    "aten.var.dim": lambda x: x.var(-1),
    "autoplan.cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(ROWS, dtype=torch.int64), reduction="sum"),
}


@pytest.mark.parametrize("op", [*OPERATORS, "unweighted"])
def test_the_table_says_what_torch_allocates(op: str) -> None:
    holds = {**HOLDS, **COMPOSED, "unweighted": UNWEIGHTED["aten.rms_norm.default"]}[op]
    watched = Tensors()
    with watched:
        x = made(ROWS, WIDTH)
        before = watched.held_bytes
        result = OPERATORS[op](x) if op in OPERATORS else F.rms_norm(x, (WIDTH,), None, 1e-6)
        own, size = result.numel() * 4, ROWS * WIDTH * 4
        operand = size if op == "aten.div.Tensor" else 0  # made by the function, and held by its result
        saved = watched.held_bytes - before - own - operand
        gradient = torch.ones_like(result)
        alive = watched.held_bytes
        watched.restart()
        result.backward(gradient)
    assert abs(saved - holds.saved([size], own)) < NEAR * size
    assert abs(watched.peak_bytes - alive - holds.backward([size], own)) < NEAR * size


@pytest.mark.parametrize(
    ("model", "pins"),
    [
        slow(("llama", Parallelism(micro_batch=4))),
        slow(("llama", Parallelism(micro_batch=2))),
        slow(("gpt2", Parallelism(micro_batch=4, recompute="full"))),
        ("bert", Parallelism(micro_batch=2, recompute="selective")),
        slow(("mlp", Parallelism(micro_batch=4))),
slow(("mixtral", Parallelism(micro_batch=4, recompute="none"))),
        slow(("mixtral", Parallelism(micro_batch=4, recompute="selective"))),
    ],
    ids=["llama", "llama, microbatches", "gpt2, full", "bert, selective", "mlp", "mixtral", "mixtral, selective"],
)
def test_one_ranks_peak_is_the_predicted(tmp_path: Path, model: str, pins: Parallelism) -> None:
    module, batch, loss_fn = zoo.small(model)
    plan = parallelize_unproved(module, "1x1 cpu", batch, loss_fn=loss_fn, training=Training(), parallelism=pins)
    with RankPool(1, timeout_s=240) as pool:
        ((measured, _),) = pool.run(peaks_of_rank, str(plan.export(tmp_path / "out")))
    assert plan.predicted.peak_bytes[0].total == pytest.approx(measured, rel=NEAR)
