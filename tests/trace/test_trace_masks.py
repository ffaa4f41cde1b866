"""What a mask keeps: rows that count, or an error that says what to write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autoplan.errors import TraceError
from autoplan.trace.pipeline import trace

ROWS, WIDTH = 8, 4


class Masking(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.function(self.body(x), mask)


def traced(function: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    model = trace(Masking(function), (torch.randn(ROWS, WIDTH), torch.rand(ROWS) > 0.5), training=True)
    return [node.op for block in model.blocks for node in block.nodes]


@pytest.mark.parametrize(
    "function",
    [
        lambda h, mask: h[mask].sort(0).values.cumsum(0).sum(),
        lambda h, mask: (h[mask].T @ h[mask]).sum(),
        lambda h, mask: h[:, mask[:WIDTH]].sum(),
        lambda h, mask: h[mask].softmax(0).sum(),
    ],
    ids=["sorted", "product", "columns", "over_rows"],
)
def test_what_needs_the_kept_rows_alone_is_refused(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(TraceError, match="mask"):
        traced(function)


def test_a_mean_over_what_is_kept_counts_before_the_first_microbatch() -> None:
    ops = traced(lambda h, mask: (h[mask] * 2).tanh().mean())
    assert "aten.masked_fill.Scalar" in ops and "aten.index.Tensor" not in ops


def test_rows_meet_their_own() -> None:
    """[kept] * [rows, 1] would be a table of both, of which masked rows are no part."""
    with pytest.raises(TraceError):
        traced(lambda h, mask: (h[mask].sum() * h[mask][:, 0] * h[:, :1]).sum())
