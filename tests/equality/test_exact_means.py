"""Means over the valid tokens of the whole batch, whatever the split over ranks and microbatches.

Where one device has no number for a loss, every rank says so.
"""

from __future__ import annotations

import copy
import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import autoplan
from autoplan.errors import DivergedError
from autoplan.options import Parallelism, Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone, parallelize_unproved
from tests.support.sampling import sampled

ROWS, TOKENS, CLASSES, WIDTH = 8, 6, 12, 8
IGNORED = -100
WEIGHT = torch.linspace(0.0, 2.0, CLASSES)  # one class weighs nothing
Mask = tuple[tuple[bool, ...], ...]
LossFn = Callable[[Tensor, Tensor], Tensor]


class Tagger(nn.Module):
    """A class for each token, and the loss over all of them."""

    def __init__(self, loss: LossFn) -> None:
        super().__init__()
        self.loss = loss
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.loss(self.head(x), labels)


class OfTokens(nn.CrossEntropyLoss):
    """Logits [rows, tokens, classes], labels [rows, tokens]."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits.flatten(0, 1), labels.flatten())


def squares(logits: Tensor, labels: Tensor) -> Tensor:
    """A mean over all elements; no token is left out."""
    return F.mse_loss(logits, labels.unsqueeze(-1).expand(-1, -1, CLASSES).to(logits.dtype))


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    """A mean over valid tokens as scripts write it."""
    valid = (labels != IGNORED).to(logits.dtype)
    spread = (logits - logits.mean(-1, keepdim=True)).square().mean(-1)
    return (spread * valid).sum() / valid.sum()


LOSSES: dict[str, LossFn] = {
    "mean": OfTokens(),
    "smoothed": OfTokens(label_smoothing=0.1),
    "sum": OfTokens(reduction="sum"),
    "smoothed sum": OfTokens(reduction="sum", label_smoothing=0.2),
    "weighted": OfTokens(WEIGHT),
    "weighted and smoothed": OfTokens(WEIGHT, label_smoothing=0.1),
    "weighted sum": OfTokens(WEIGHT, reduction="sum"),
    "squares": squares,
    "by hand": by_hand,
}
PLANS = {
    "dp=4": Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=2),
    "dp=4, 2 microbatches, ZeRO-3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1),
    "dp=2 pp=2, 4 microbatches": Parallelism(dp=2, tp=1, pp=2, zero=0, micro_batch=1),
    "dp=2 tp=2, 2 microbatches": Parallelism(dp=2, tp=2, pp=1, zero=1, micro_batch=2),
    "pp=4, 8 microbatches": Parallelism(dp=1, tp=1, pp=4, micro_batch=1),
}
CELLS = [
    ("mean", "dp=4, 2 microbatches, ZeRO-3"),
    ("mean", "dp=2 pp=2, 4 microbatches"),
    ("mean", "dp=2 tp=2, 2 microbatches"),
    ("mean", "pp=4, 8 microbatches"),
    ("smoothed", "dp=2 tp=2, 2 microbatches"),
    ("smoothed", "dp=2 pp=2, 4 microbatches"),
    ("sum", "dp=2 pp=2, 4 microbatches"),
    ("smoothed sum", "dp=2 tp=2, 2 microbatches"),
    ("weighted", "dp=2 pp=2, 4 microbatches"),
    ("weighted and smoothed", "dp=2 tp=2, 2 microbatches"),
    ("weighted sum", "dp=4, 2 microbatches, ZeRO-3"),
    ("squares", "dp=2 pp=2, 4 microbatches"),
]
# sums, means, weights, smoothing; over microbatches, stages, data and tensor axes
QUICK = [
    ("mean", "dp=2 pp=2, 4 microbatches"), ("weighted and smoothed", "dp=2 tp=2, 2 microbatches"),
]


@dataclass(frozen=True)
class Stepped:
    """One step: the loss, and each gradient."""

    loss: float
    gradients: Mapping[str, Tensor]


def model(loss: str) -> Tagger:
    torch.manual_seed(0)
    return Tagger(copy.deepcopy(LOSSES[loss]))


def batch(mask: Mask) -> dict[str, Tensor]:
    """mask  [ROWS][TOKENS]: which tokens are valid"""
    generator = torch.Generator().manual_seed(1)
    tokens, labels = (torch.randint(0, CLASSES, (ROWS, TOKENS), generator=generator) for _ in range(2))
    return {"tokens": tokens, "labels": labels.masked_fill(~torch.tensor(mask), IGNORED)}


def on_a_rank(rank: int, world: int, folder: str, weights: str, masks: Sequence[Mask]) -> list[Stepped]:
    program = autoplan.load(folder).program()
    program.load_weights(weights)
    return [stepped(program, mask) for mask in masks]


def stepped(program: Program, mask: Mask) -> Stepped:
    program.optimizer.zero_grad()
    try:
        return Stepped(float(program.step(batch(mask))), program.full_grads())
    except DivergedError as error:
        assert "loss=nan" in str(error)
        return Stepped(math.nan, {})


def on_one_device(kind: str, mask: Mask) -> Stepped:
    module = model(kind).double()
    loss = module(**batch(mask))
    loss.backward()
    return Stepped(float(loss.detach()), {n: p.grad for n, p in module.named_parameters() if p.grad is not None})


def exported(folder: Path, loss: str, plan: str) -> tuple[str, str]:
    """The plan's folder, and a file of weights."""
    module, training = model(loss), Training(precision="fp64")
    save_file(dict(module.state_dict()), folder / "weights.safetensors")
    given = parallelize_unproved(module, "1x4 cpu", batch(rows(TOKENS)), training=training, parallelism=PLANS[plan])
    return str(given.export(folder / "out")), str(folder / "weights.safetensors")


def rows(*valid: int) -> Mask:
    """So many valid tokens in each row, over and over."""
    return tuple(tuple(t < valid[r % len(valid)] for t in range(TOKENS)) for r in range(ROWS))


def drawn(source: random.Random, count: int) -> list[Mask]:
    """Masks whose rows are whole, empty or mixed; the likelihood of each kind is another in each mask."""
    masks = []
    for _ in range(count):
        whole, empty = source.random(), source.random()
        masks.append(tuple(row(source, whole, empty) for _ in range(ROWS)))
    return masks


def row(source: random.Random, whole: float, empty: float) -> tuple[bool, ...]:
    kind = source.random() * (whole + empty + 1)
    if kind < whole + empty:
        return (kind < whole,) * TOKENS
    return tuple(source.random() < 0.5 for _ in range(TOKENS))


NONE, ONE_RANK = rows(0), tuple((r == 5,) * TOKENS for r in range(ROWS))
FEW = [NONE, ONE_RANK, rows(0, 3), rows(1)]


@pytest.mark.parametrize(("loss", "plan"), sampled(CELLS, QUICK), ids=lambda name: name)
def test_a_mean_is_one_devices(pool: RankPool, tmp_path: Path, loss: str, plan: str) -> None:
    folder, weights = exported(tmp_path, loss, plan)

    seed = secrets.randbits(32)
    masks = [*FEW, *drawn(random.Random(seed), 12)]
    found = pool.run(on_a_rank, folder, weights, masks)  # one run: loading a program takes as long as many steps
    for number, mask in enumerate(masks):
        try:
            assert_same([each[number] for each in found], on_one_device(loss, mask))
        except AssertionError as error:
            raise AssertionError(f"mask {number} of seed {seed}: {mask}") from error


def assert_same(found: Sequence[Stepped], wanted: Stepped) -> None:
    """Every rank has the loss, rank 0 the gradients."""
    for each in found:
        assert each.loss == pytest.approx(wanted.loss, rel=1e-12, abs=1e-13, nan_ok=True)
    if math.isnan(wanted.loss):
        return
    assert found[0].gradients.keys() == wanted.gradients.keys()
    for name, gradient in wanted.gradients.items():
        given = found[0].gradients[name]
        torch.testing.assert_close(given, gradient, rtol=1e-10, atol=1e-13, msg=name)


def test_a_mean_whose_parts_would_not_add_up_is_taken_of_all_rows() -> None:
    """Written by hand, what it is divided by isn't known to be a count of the whole batch: its rows meet."""
    plan = parallelize_alone(model("by hand"), "1x4 cpu", batch(rows(TOKENS)), parallelism=PLANS["dp=4"])
    assert plan.verify().passed


def test_one_device_gives_no_number_for_a_batch_without_valid_tokens() -> None:
    """What the sharded program is held to."""
    assert math.isnan(on_one_device("mean", NONE).loss) and math.isnan(on_one_device("weighted", NONE).loss)
    assert on_one_device("sum", NONE).loss == 0
