"""Loops over a triangular matrix's rows in the trace: one solve where that is what they compute, as written else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.support.traced_loops import ops, traced_equal

torch.set_num_threads(1)

SOLVE = "aten.linalg_solve_triangular.default"
ROWS, N = 2, 5


def rows(a: Tensor, first: int = 1, last: int = N) -> Tensor:
    for i in range(first, last):
        row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
    return a


def as_a_delta_rule(x: Tensor) -> Tensor:
    """As Qwen3-Next writes it."""
    return rows(-x.tril(-1)) + torch.eye(N)


def masked(x: Tensor) -> Tensor:
    """The mask names what becomes zero; sums and products the other way round."""
    a = x.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(), 0)
    for i in range(1, N):
        row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
        a[..., i, :i] = (above * row[..., None]).sum(-2) + row
    return a


def with_a_diagonal(x: Tensor) -> Tensor:
    """No triangular solve: columns right of a row's diagonal are never added."""
    return rows(x.tril(0))


def from_the_third(x: Tensor) -> Tensor:
    return rows(x.tril(-1), first=2)


def but_the_last(x: Tensor) -> Tensor:
    return rows(x.tril(-1), last=N - 1)


def of_what_it_was(x: Tensor) -> Tensor:
    """Each row's product is with the rows as they were, not as they are by then."""
    was, a = x.tril(-1), x.tril(-1).clone()
    for i in range(1, N):
        a[..., i, :i] = a[..., i, :i].clone() + (a[..., i, :i].clone().unsqueeze(-1) * was[..., :i, :i]).sum(-2)
    return a


def under_a_drawn_mask(x: Tensor) -> Tensor:
    """It covers the upper half in each draw, yet is no constant."""
    return rows(x.masked_fill((torch.rand(N, N) > -1).triu(), 0))


class Loop(nn.Module):
    def __init__(self, loop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.loop, self.weight = loop, nn.Parameter(torch.rand(N, N))

    def forward(self, x: Tensor) -> Tensor:
        found = self.loop(x * self.weight)
        return (found * torch.arange(N)).sum()


def traced(loop: Callable[[Tensor], Tensor]) -> Model:
    torch.manual_seed(0)
    return traced_equal(Loop(loop), {"x": torch.randn(ROWS, 3, N, N)})


@pytest.mark.parametrize("loop", [as_a_delta_rule, masked])
def test_a_loop_over_rows_is_one_solve(loop: Callable[[Tensor], Tensor]) -> None:
    found = ops(traced(loop))
    assert found.count(SOLVE) == 1
    assert "aten.cat.default" not in found and "aten.slice.Tensor" not in found


@pytest.mark.parametrize("loop", [with_a_diagonal, from_the_third, but_the_last, of_what_it_was])
def test_another_loop_stays_as_it_is_written(loop: Callable[[Tensor], Tensor]) -> None:
    assert SOLVE not in ops(traced(loop))


def test_a_mask_that_is_drawn_is_no_constant() -> None:
    model = trace(Loop(under_a_drawn_mask), {"x": torch.randn(ROWS, 3, N, N)}, training=True)
    assert SOLVE not in ops(model)


def test_halves_are_not_solved() -> None:
    model = trace(Loop(as_a_delta_rule), {"x": torch.randn(ROWS, 3, N, N)}, training=True, dtype="bfloat16")
    assert SOLVE not in ops(model)
