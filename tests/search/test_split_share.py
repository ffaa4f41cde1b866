"""A plan says what its tensor axis splits, and one that would split rows alone is planned as data parallelism."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autoplan

ROWS, LENGTH, WIDTH, WIDER = 256, 16, 512, 1024

class Products(nn.Module):
    """x @ a @ b, and a product of x with itself, which has no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDER, bias=False), nn.Linear(WIDER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.b(self.a(x).relu())
        return (x @ hidden.transpose(1, 2)).square().mean()


def planned(parallelism: str, cluster: str = "1x2 cpu") -> autoplan.Plan:
    batch = (torch.empty(ROWS, LENGTH, WIDTH),)
    return autoplan.parallelize(Products, cluster, batch, parallelism=parallelism)


def test_the_shares_are_those_of_the_flops_counted_by_hand() -> None:
    plan = planned("tp=2")
    weights, product = 4 * ROWS * LENGTH * WIDTH * WIDER, 2 * ROWS * LENGTH**2 * WIDTH
    split = plan.predicted.split
    assert split is not None
    assert split.weights == pytest.approx(weights / (weights + product), rel=1e-12)
    assert split.any in (pytest.approx(split.weights), pytest.approx(1.0))
    assert f"tp splits {100 * split.any:.1f}".removesuffix(".0") in plan.report().replace("\n            ", " ")


@pytest.mark.parametrize("parallelism", ["dp=2", "auto"])
def test_what_splits_rows_alone_is_planned_as_data_parallelism(parallelism: str) -> None:
    """Both sum the same gradients in the same buckets: neither the report nor the price may prefer the odd name."""
    plan = planned(parallelism)
    assert plan.parallelism.dp == 2
    assert plan.predicted.split is None
    assert "tp splits" not in plan.report(verbose=True)
