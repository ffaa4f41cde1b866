"""Cross-entropy with the classes split: what it holds at most, and that it equals torch's with labels ignored and
smoothed, classes weighted, tables tied."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

import autoplan
from autoplan.ir.typed_program import Compute
from autoplan.runtime import ops
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.loss import vocab_parallel
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone
from tests.support.tensor_life import TensorLife

pytestmark = pytest.mark.usefixtures("verified_in_pool")

RANKS, ROWS, CLASSES = 2, 96, 4096
PIECE_BYTES = 1 << 12  # so that these few rows are taken in pieces, too
CASES = list(itertools.product((False, True), (0.0, 0.1)))  # weighted, smoothing


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(RANKS, timeout_s=240) as pool:
        yield pool


def data(dtype: torch.dtype, rows: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with large ones among them, targets with ignored ones, weights of classes, one of them zero."""
    generator = torch.Generator().manual_seed(1)
    logits = 20 * torch.randn(2, rows // 2, classes, dtype=torch.float64, generator=generator)
    target = torch.randint(classes, (2, rows // 2), generator=generator)
    target[:, ::5], target[1, 1:4] = -100, -100
    weight = torch.rand(classes, dtype=torch.float64, generator=generator)
    weight[0] = 0.0
    return logits.to(dtype), target, weight.to(dtype if dtype.itemsize > 2 else torch.float32)


def split(
    logits: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, axes: tuple[MeshAxis, ...]
) -> Tensor:
    if weight is None:
        count = ops.count_valid(target)
        return ops.vocab_parallel_cross_entropy(logits, target, count, -100, smoothing, axes=axes)
    counts = ops.count_classes(target, len(weight))
    return ops.vocab_parallel_weighted_cross_entropy(logits, target, weight, counts, -100, smoothing, axes=axes)


def measure_pieces(
    rank: int, size: int, dtype: torch.dtype, rows: int, classes: int, piece_bytes: int
) -> list[tuple[Tensor, Tensor, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocab_parallel, "PIECE_BYTES", piece_bytes)
        return measure(rank, size, dtype, rows, classes)


def measure(rank: int, size: int, dtype: torch.dtype, rows: int, classes: int) -> list[tuple[Tensor, Tensor, int]]:
    """Loss, this rank's gradient, and the most bytes held beside the logits, of every case."""
    found = []
    axes = (MeshAxis("tp", size, rank, distributed.group.WORLD),)
    for weighted, smoothing in CASES:
        logits, target, weight = data(dtype, rows, classes)
        local = logits.chunk(size, -1)[rank].clone().requires_grad_()
        with TensorLife() as life:
            loss = split(local, target, weight if weighted else None, smoothing, axes)
            loss.backward()
        assert local.grad is not None
        found.append((loss.detach(), local.grad, life.most))
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_loss_holds_little_more_than_its_share_of_the_logits(pool: RankPool, dtype: torch.dtype) -> None:
    for results in pool.run(measure_pieces, dtype, ROWS, CLASSES, PIECE_BYTES):
        for _, gradient, most in results:
            share = ROWS * CLASSES * dtype.itemsize // RANKS
            assert gradient.numel() * gradient.element_size() == share
            assert share <= most <= 1.2 * share


@pytest.mark.parametrize("piece_bytes", [vocab_parallel.PIECE_BYTES, 200], ids=["whole", "pieces"])
def test_split_loss_equals_torchs(pool: RankPool, piece_bytes: int) -> None:
    ranks = pool.run(measure_pieces, torch.float64, 30, 24, piece_bytes)
    for case, (weighted, smoothing) in enumerate(CASES):
        logits, target, weight = data(torch.float64, 30, 24)
        logits.requires_grad_()
        flat = logits.flatten(0, 1), target.flatten(), weight if weighted else None
        want = functional.cross_entropy(*flat, label_smoothing=smoothing)
        want.backward()
        for loss, _, _ in (results[case] for results in ranks):
            torch.testing.assert_close(loss, want.detach(), rtol=1e-12, atol=0)
        gradient = torch.cat([results[case][1] for results in ranks], -1)
        torch.testing.assert_close(gradient, logits.grad, rtol=1e-10, atol=1e-14)


class Tied(nn.Module):
    """A table that is looked up and gives the logits, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.table(ids))))


class Whole(nn.Module):
    """Model and loss, so that the weights are a buffer."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.model = Tied()
        weight = torch.linspace(0.1, 2.0, 64) if weighted else None
        self.register_buffer("weight", weight)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        logits = self.model(ids)
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), self.weight, label_smoothing=0.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_tied_table_and_loss_are_split_together(weighted: bool) -> None:
    """Valid labels differ between ranks and microbatches (``verify.batch``)."""
    ids = torch.randint(64, (8, 6))
    pinned = autoplan.Parallelism(dp=2, tp=2, pp=1, micro_batch=2, tensor_system="vocab-parallel")
    plan = parallelize_alone(Whole(weighted), "1x4 cpu", (ids, ids.clone()), parallelism=pinned)
    computed = [s for block in plan.lowered.blocks for s in block.body if isinstance(s, Compute)]
    used = {s.body for s in computed if s.body}
    assert used == {"vocab_parallel_embedding", f"vocab_parallel_{'weighted_' if weighted else ''}cross_entropy"}
    result = plan.verify()
    assert result.passed and result.ranks == 4
