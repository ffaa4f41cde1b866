"""Reshapes of split tensors: against reshaping the whole tensor and slicing it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.layout import I, Layout, P
from autoplan.mesh import Mesh
from autoplan.redistribute.boxes import boxes
from autoplan.redistribute.refinement import Refinement, follow_reshape, from_refined, refine, to_refined

SHAPES = [
    ((4, 6), (24,)),
    ((4, 6), (6, 4)),
    ((12,), (3, 4)),
    ((12,), (4, 3)),
    ((6,), (2, 3)),
    ((8, 3), (2, 4, 3)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((5, 4), (5, 2, 2)),
    ((4, 5), (2, 2, 5)),
    ((1, 6, 1), (1, 2, 3)),
    ((2, 3), (3, 2)),
    ((2, 10, 3), (4, 5, 3)),
    ((0, 4), (0, 2, 2)),
    ((3, 0), (0,)),
    ((4,), (4,)),
]
MESHES = [Mesh.of(x=4), Mesh.of(x=6), Mesh.of(x=2, y=2), Mesh.of(x=2, y=3), Mesh.of(x=2, y=2, z=2)]


def deal(whole: np.ndarray, layout: Layout, mesh: Mesh) -> list[np.ndarray]:
    """Every rank's part of a whole tensor, by its layout on its own shape."""
    axes = [factor for axis in mesh.axes for factor in mesh.factors(axis.name)]
    sizes = {name: mesh.size(name) for name in (*axes, *mesh.names)}
    named = [a for a in mesh.names if a in layout.axes] + [a for a in axes if a in layout.axes and a not in mesh.names]
    parts = boxes(layout.dims, whole.shape, named, sizes)
    found = []
    for rank in range(mesh.devices):
        member = 0
        for axis in named:
            member = member * sizes[axis] + mesh.coordinate(rank, axis)
        found.append(whole[tuple(slice(start, stop) for start, stop in parts[member])])
    return found


def layouts(rank: int, mesh: Mesh) -> Iterator[Layout]:
    """All ordered ones, axes whole or by their factors; R beside the dims."""
    seen = set()
    for names in itertools.product(*({(a,), mesh.factors(a)} for a in mesh.names)):
        axes = [axis for group in names for axis in group]
        for count in range(len(axes) + 1):
            for order in itertools.permutations(axes, count):
                for places in itertools.product(range(rank), repeat=count):
                    dims = tuple(tuple(a for a, d in zip(order, places, strict=True) if d == n) for n in range(rank))
                    layout = Layout.ordered(dims, mesh)
                    if layout not in seen:
                        seen.add(layout)
                        yield layout


def even(layout: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    ways = [math.prod(mesh.size(axis) for axis in axes) for axes in layout.dims]
    return 0 not in shape and all(size % count == 0 for size, count in zip(shape, ways, strict=True))


def merged(refinement: Refinement, side: str) -> tuple[int, ...]:
    """The sizes that a side's pieces multiply to."""
    dims = refinement.before if side == "before" else refinement.after
    return tuple(math.prod(piece.size for piece in pieces) for pieces in dims)


# refine


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


# relabelling


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(("before", "after"), [*SHAPES, *((b, a) for a, b in SHAPES)], ids=str)
def test_a_relabelling_is_a_reshape_of_every_part_and_there_is_one_where_any_layout_fits(
    before: tuple[int, ...], after: tuple[int, ...], mesh: Mesh
) -> None:
    whole = np.arange(math.prod(before)).reshape(before)
    refinement = refine(before, after)

    def contents(layout: Layout, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(n) for n in part.ravel()) for part in deal(whole.reshape(shape), layout, mesh))

    # Uneven parts may happen to be the same, [4] and [2, 2] over 3, say, without a rule to it.
    possible = {contents(layout, after) for layout in layouts(len(after), mesh) if even(layout, after, mesh)}
    for layout in layouts(len(before), mesh):
        held = contents(layout, before)
        refined = to_refined(layout, refinement, "before", mesh)
        followed = follow_reshape(layout, before, after, mesh)
        if refined is not None:
            assert contents(refined, refinement.shape) == held, layout
            assert from_refined(refined, refinement, "before", mesh) is not None
        if followed is not None:
            assert contents(followed, after) == held, layout
        elif even(layout, before, mesh):
            assert held not in possible, (layout, before, after)


def test_merging_dims_split_from_the_outermost_keeps_the_split() -> None:
    mesh = Mesh.of(x=2, y=2)
    assert follow_reshape(Layout.ordered([["x"], []], mesh), (4, 6), (24,), mesh) == Layout.ordered([["x"]], mesh)
    both = Layout.ordered([["x"], ["y"]], mesh)
    assert follow_reshape(both, (2, 6), (12,), mesh) == Layout.ordered([["x", "y"]], mesh)
    assert follow_reshape(Layout.ordered([["x", "y"]], mesh), (12,), (2, 6), mesh) == both
    assert follow_reshape(both, (4, 6), (24,), mesh) is None, "four rows, two on each rank: no part is contiguous"


def test_an_inner_dim_that_is_split_is_only_said_on_the_refined_shape() -> None:
    mesh = Mesh.of(x=2)
    strided = Layout.ordered([[], ["x"]], mesh)
    assert follow_reshape(strided, (4, 6), (24,), mesh) is None
    assert to_refined(strided, refine((4, 6), (24,)), "before", mesh) == strided


def test_an_axis_goes_on_by_its_factors() -> None:
    mesh = Mesh.of(x=6)
    split = Layout.ordered([["x.0"], ["x.1"]], mesh)
    assert follow_reshape(Layout.ordered([["x"]], mesh), (6,), (2, 3), mesh) == split
    assert follow_reshape(split, (2, 3), (6,), mesh) == Layout.ordered([["x"]], mesh)
    assert follow_reshape(Layout.ordered([["x"]], mesh), (6,), (3, 2), mesh) is None, "2 comes first, as 3 does not"
    four = Mesh.of(x=4)
    assert follow_reshape(Layout.ordered([["x"]], four), (6,), (2, 3), four) is None, "2, 2, 2 and 0 are no rows of 3"


def test_uneven_dims_that_the_reshape_leaves_alone_stay() -> None:
    mesh = Mesh.of(x=2, y=3)
    uneven = Layout.ordered([["x"], ["y"]], mesh)
    assert follow_reshape(uneven, (5, 6), (5, 3, 2), mesh) == Layout.ordered([["x"], ["y"], []], mesh)
    assert follow_reshape(uneven, (5, 6), (30,), mesh) is None


def test_what_stands_beside_the_dims_passes_through() -> None:
    mesh = Mesh.of(x=2, y=2, z=2)
    layout = Layout.ordered([["x"], []], mesh, {"y": P, "z": I})
    assert follow_reshape(layout, (4, 6), (24,), mesh) == Layout.ordered([["x"]], mesh, {"y": P, "z": I})


@pytest.mark.parametrize(
    ("before", "after", "source", "target"),
    [
        ((3 * 4 * 2,), (3, 4, 2), [["x"]], None),  # q, k and v by blocks: a rank of two has one and a half of the three
        ((4 * 3 * 2,), (4, 3, 2), [["x"]], [["x"], [], []]),  # interleaved by heads
        ((2, 5, 4 * 2), (2, 5, 4, 2), [[], [], ["x", "y"]], [[], [], ["x", "y"], []]),
        ((2, 5, 4 * 2), (2, 5, 4, 2), [["y"], [], ["x"]], [["y"], [], ["x"], []]),
        ((2, 5, 8), (10, 8), [["x"], [], ["y"]], [["x"], ["y"]]),
        ((2, 4, 8), (8, 8), [["x"], ["y"], []], [["x", "y"], []]),
        ((4, 3, 2, 5), (12, 2, 5), [["x"], [], [], []], [["x"], [], []]),  # batch with heads, as nn.MultiheadAttention
        ((4, 3, 2, 5), (12, 2, 5), [["x", "y"], [], [], []], [["x", "y"], [], []]),
    ],
    ids=str,
)
def test_projections_heads_and_flattened_batches(
    before: tuple[int, ...], after: tuple[int, ...], source: list[list[str]], target: list[list[str]] | None
) -> None:
    mesh = Mesh.of(x=2, y=2)
    expected = None if target is None else Layout.ordered(target, mesh)
    assert follow_reshape(Layout.ordered(source, mesh), before, after, mesh) == expected
