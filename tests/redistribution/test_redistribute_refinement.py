"""The common refinement of two shapes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.redistribution.common_refinement import Refinement, refine


def merged(refinement: Refinement, side: str) -> tuple[int, ...]:
    """The sizes that a side's pieces multiply to."""
    dims = refinement.before if side == "before" else refinement.after
    return tuple(math.prod(piece.size for piece in pieces) for pieces in dims)


def test_the_refinement_of_a_merge_is_the_finer_shape() -> None:
    assert refine((4, 6, 5), (24, 5)).shape == (4, 6, 5)
    assert refine((2, 7, 12), (2, 7, 3, 4)).shape == (2, 7, 3, 4)
    assert refine((6, 4), (2, 12)).shape == (2, 3, 4)
    assert refine((8,), (8,)).shape == (8,)


def test_cuts_that_do_not_nest_leave_an_opaque_dim_between_those_that_do() -> None:
    found = refine((4, 6), (6, 4))
    assert (found.shape, found.opaque) == ((2, 6, 2), {1})
    assert [[(p.number, p.size) for p in pieces] for pieces in found.before] == [[(0, 2), (1, 2)], [(1, 3), (2, 2)]]
    assert [[(p.number, p.size) for p in pieces] for pieces in found.after] == [[(0, 2), (1, 3)], [(1, 2), (2, 2)]]
    assert refine((2, 3), (3, 2)).shape == (6,)
    assert refine((2, 15, 4), (3, 2, 5, 4)).shape == (6, 5, 4), "a cut inside one dim that is an edge of another"


def test_sizes_of_one_are_paired_where_both_sides_have_them() -> None:
    found = refine((1, 4, 1), (1, 2, 2))
    assert found.shape == (1, 2, 2)
    assert [len(pieces) for pieces in found.before] == [1, 2, 0]
    assert refine((), (1,)).shape == ()
    assert refine((1, 1), (1,)).shape == (1,)


def test_shapes_without_elements_keep_what_is_the_same_at_their_ends() -> None:
    found = refine((5, 0, 4, 3), (5, 4, 0, 3))
    assert (found.shape, found.opaque) == ((5, 0, 3), {1})
    assert refine((5, 0), (5, 0)).opaque == frozenset()
    assert refine((0,), (2, 0, 3)).shape == (0,)


def test_another_number_of_elements_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[4, 6\] can't be reshaped to \[5, 5\]: it has 24 elements, not 25"):
        refine((4, 6), (5, 5))


@given(st.lists(st.integers(1, 6), max_size=5), st.permutations(range(5)), st.data())
def test_both_sides_are_merges_of_the_refinement(sizes: list[int], order: list[int], data: st.DataObject) -> None:
    def merge(factors: list[int]) -> tuple[int, ...]:
        ends = sorted(data.draw(st.sets(st.integers(0, len(factors)), max_size=4)) | {0, len(factors)})
        return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise(ends))

    before, after = merge(sizes), merge([sizes[n] for n in order if n < len(sizes)])
    found = refine(before, after)
    assert (merged(found, "before"), merged(found, "after")) == (before, after)
    assert math.prod(found.shape) == math.prod(before)
    for side in (found.before, found.after):
        numbers = [piece.number for pieces in side for piece in pieces]
        assert numbers == sorted(numbers) and set(numbers) == set(range(len(found.shape)))
        for number in set(numbers) - found.opaque:
            assert [p.size for pieces in side for p in pieces if p.number == number] == [found.shape[number]]
    if sizes == [sizes[n] for n in order if n < len(sizes)]:  # merges of one shape nest
        edges = {math.prod(s[:n]) for s in (before, after) for n in range(len(s) + 1)}
        assert not found.opaque
        assert {math.prod(found.shape[:n]) for n in range(len(found.shape) + 1)} == edges
