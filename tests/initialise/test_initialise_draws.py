"""Draws in pieces take the numbers that draws at once take, to the bit, and hold a piece at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autoplan.trace.initialise.draws import IN_ORDER, NORMAL, PIECE, pass_over, pieces, truncated_normal_
from tests.support.tensor_life import TensorLife

SIZES = st.one_of(*(st.integers(first, first + 40) for first in (1, 2 * PIECE - 20, 4 * PIECE)))
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def seeded() -> torch.Generator:
    """A generator from which a normal number was drawn alone, so that its twin is kept for the next small draw."""
    generator = torch.Generator().manual_seed(5)
    torch.empty(1).normal_(generator=generator)
    return generator


def drawn_after(draw: Callable[[torch.Generator], object]) -> list[torch.Tensor]:
    """What the generator gives once something was drawn from it."""
    generator = seeded()
    draw(generator)
    return [torch.empty(n).normal_(generator=generator) for n in (1, 1, 40)]


@given(elements=st.integers(1, 10 * PIECE))
def test_pieces_are_whole_blocks_and_the_last_has_one_at_least(elements: int) -> None:
    found = list(pieces(elements))
    assert [p.start for p in found] == [0, *(p.stop for p in found[:-1])] and found[-1].stop == elements
    assert all((p.stop - p.start) % 16 == 0 for p in found[:-1])
    assert len(found) == 1 or found[-1].stop - found[-1].start >= PIECE


@given(elements=SIZES, dtype=DTYPES, op=st.sampled_from(IN_ORDER))
def test_passing_over_a_draw_takes_what_it_takes(elements: int, dtype: torch.dtype, op: str) -> None:
    bounds = (0.5, 2.0)

    def at_once(generator: torch.Generator) -> None:
        blank = torch.empty(elements, dtype=dtype)
        (blank.normal_ if op == NORMAL else blank.uniform_)(*bounds, generator=generator)

    found = drawn_after(lambda g: pass_over(op, elements, dtype, bounds, g))
    assert all(torch.equal(a, b) for a, b in zip(found, drawn_after(at_once), strict=True))


@given(
    elements=SIZES,
    dtype=DTYPES,
    ends=st.sampled_from([(-2.0, 2.0), (-0.04, 0.04), (-0.02, 0.06), (-0.01, 0.0)]),
)
def test_truncated_normal_numbers_are_torchs_own(
    elements: int, dtype: torch.dtype, ends: tuple[float, float]
) -> None:
    ours, theirs = torch.empty(elements, dtype=dtype), torch.empty(elements, dtype=dtype)
    found = drawn_after(lambda g: truncated_normal_(ours, 0.0, 0.02, *ends, g))
    wanted = drawn_after(lambda g: nn.init.trunc_normal_(theirs, 0.0, 0.02, *ends, g))
    assert torch.equal(ours, theirs)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_tensor_that_is_not_contiguous_is_torchs_own() -> None:
    ours, theirs = torch.empty(40, 30), torch.empty(40, 30)
    truncated_normal_(ours.t(), 0.0, 1.0, -1.0, 1.0, seeded())
    nn.init.trunc_normal_(theirs.t(), 0.0, 1.0, -1.0, 1.0, seeded())
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("op", IN_ORDER)
def test_a_draw_that_is_passed_over_holds_a_piece(op: str) -> None:
    with TensorLife() as life:
        pass_over(op, 20 * PIECE, torch.float32, (0.0, 1.0), torch.Generator())
    assert PIECE * 4 <= life.most <= 3 * PIECE * 4 and life.alive == 0


def test_truncated_normal_numbers_are_drawn_in_the_tensors_own_memory() -> None:
    tensor = torch.empty(20 * PIECE)
    with TensorLife() as life:
        truncated_normal_(tensor, 0.0, 1.0, -2.0, 2.0, torch.Generator())
    assert life.most <= 10 * PIECE * 4  # torch's own holds two copies of it
