"""A recommender with a table of each kind, planned with them placed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

import autoplan
from autoplan import Training
from autoplan.search.tables.place import Choice
from autoplan.search.tables.placed_search import choices
from tests.support.planning import parallelize_alone

ROWS = 16
SIZES = (10, 33, 200, 40, 12, 21)


class Recommender(nn.Module):
    """A table of each kind beside dense features: bags summed, averaged, weighted, of maxima; rows one after another;
    and one for each row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        modes = ("sum", "mean", "sum", "max")
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, 8, mode=m) for n, m in zip(SIZES, modes, strict=False))
        self.bags[1].padding_idx = 3
        self.several = nn.Embedding(SIZES[4], 4, padding_idx=2)
        self.one = nn.Embedding(SIZES[5], 4)
        self.dense = nn.Linear(5, 8)
        self.top = nn.Sequential(nn.Linear(52, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(
        self, dense: Tensor, ids: Tensor, shares: Tensor, words: Tensor, user: Tensor, clicks: Tensor
    ) -> Tensor:
        bags = [bag(ids[:, i]) if i != 2 else bag(ids[:, i], per_sample_weights=shares)
                for i, bag in enumerate(self.bags)]  # fmt: skip
        x = torch.cat([self.dense(dense), *bags, self.several(words).flatten(1), self.one(user)], 1)
        return functional.binary_cross_entropy_with_logits(self.top(x).squeeze(1), clicks)


def batch() -> tuple[Tensor, ...]:
    ids = torch.randint(10, (ROWS, 4, 3))
    words, user = torch.randint(12, (ROWS, 2)), torch.randint(21, (ROWS,))
    return torch.randn(ROWS, 5), ids, torch.rand(ROWS, 3), words, user, torch.rand(ROWS).round()


def planned(
    chosen: tuple[Choice, ...] | None = None, training: autoplan.Training | None = None, **pinned: object
) -> autoplan.Plan:
    """On four devices; ``chosen``: where each table lies, else as is cheapest."""
    asked = autoplan.Parallelism(tensor_system="table-parallel", **pinned)  # type: ignore[arg-type]
    picked = choices if chosen is None else lambda *_: chosen
    with patch("autoplan.search.tables.placed_search.choices", side_effect=picked):
        return parallelize_alone(Recommender(), "1x4 cpu", batch(), parallelism=asked, training=training)


MIXED: tuple[Choice, ...] = (
    ("table", 0), ("rows", -1), ("rows", -1), ("columns", -1), ("columns", -1), ("table", 3),
)  # fmt: skip

LIMIT = 0.05  # below the norm of every step's gradient
GROUP = {"match": "bags*|several*|one*", "optimizer": "rowwise-adagrad", "learning_rate": 0.05}
HOW = {
    "rowwise-adagrad": Training(optimizer="rowwise-adagrad", learning_rate=0.1),
    "sgd": Training(optimizer="sgd", learning_rate=1.0),
    "adagrad": Training(optimizer="adagrad", learning_rate=0.1, optimizer_options={"lr_decay": 0.1}),  # type: ignore[arg-type]
    "beside adamw": Training(learning_rate=0.01, groups=(GROUP,)),  # type: ignore[arg-type]
    "sgd beside adamw": Training(learning_rate=0.01, groups=({**GROUP, "optimizer": "sgd"},)),  # type: ignore[arg-type]
}


def trained(how: Training, **others: Any) -> Training:
    return Training(**{**vars(how), "precision": "fp64", "clip_grad_norm": LIMIT, "compile": False, **others})


class Large(nn.Module):
    """Tables beside which all else is small."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50_000, 8, mode="sum") for _ in range(3))
        self.top = nn.Linear(24, 1)

    def forward(self, ids: Tensor, clicks: Tensor) -> Tensor:
        x = torch.cat([bag(ids[:, i]) for i, bag in enumerate(self.bags)], 1)
        return functional.binary_cross_entropy_with_logits(self.top(x).squeeze(1), clicks)
