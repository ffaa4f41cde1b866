"""The common refinement of two shapes, and layouts across a reshape: against every layout of small shapes, and against
DTensor's views."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor._ops._view_ops import propagate_shape_and_sharding, view_groups
from torch.distributed.tensor.placement_types import _StridedShard

from autoplan.ir.layout import I, Layout, P
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.refinement import Refinement, follow_reshape, from_refined, refine, to_refined
from autoplan.redistribution.simulate import deal
from tests.support.reshapes import SHAPES, even, every_layout

MESHES = [Mesh.of(x=4), Mesh.of(x=6), Mesh.of(x=2, y=2), Mesh.of(x=2, y=3), Mesh.of(x=2, y=2, z=2)]


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
    possible = {contents(layout, after) for layout in every_layout(len(after), mesh) if even(layout, after, mesh)}
    for layout in every_layout(len(before), mesh):
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


# DTensor

Placements = Sequence[Placement]


def dtensor_parts(whole: torch.Tensor, placements: Placements, mesh: Mesh) -> list[torch.Tensor]:
    """What DTensor puts on each rank: its placements one after the other, from the first mesh dim."""
    found = []
    for rank in range(mesh.devices):
        part = whole
        for axis, placement in zip(mesh.axes, placements, strict=True):
            if isinstance(placement, Shard | _StridedShard):
                part = placement._split_tensor(part, axis.size, with_padding=False)[0][mesh.coordinate(rank, axis.name)]
        found.append(part)
    return found


@pytest.mark.parametrize("mesh", [Mesh.of(x=2, y=2), Mesh.of(x=2, y=3), Mesh.of(x=2, y=2, z=2)], ids=str)
def test_strided_shards_are_what_falls_out_of_the_refinement(mesh: Mesh) -> None:
    """Wherever DTensor's view leaves the parts where they are, the refined layout is there, too, with the same numbers
    on every rank; plain Shards are layouts of the shape after, _StridedShards aren't. (Where several axes split a dim
    beyond its outermost factor, DTensor's placements aren't those of the parts it has; nothing to agree with.)"""
    strided = 0
    pairs = [pair for pair in [*SHAPES, *((b, a) for a, b in SHAPES)] if math.prod(pair[0])]
    for before, after in pairs:
        whole, refinement = torch.arange(math.prod(before)), refine(before, after)
        for shards, placements in dtensor_views(before, after, mesh):
            dims = [[a for a, p in zip(mesh.names, shards, strict=True) if p == Shard(n)] for n in range(len(before))]
            layout = Layout.ordered(dims, mesh)
            held = dtensor_parts(whole.reshape(before), shards, mesh)
            theirs = dtensor_parts(whole.reshape(after), placements, mesh)
            if not even(layout, before, mesh) or not same(held, theirs):
                continue
            refined = to_refined(layout, refinement, "before", mesh)
            assert refined is not None
            assert same(theirs, deal(whole.numpy().reshape(refinement.shape), refined, mesh))
            followed = follow_reshape(layout, before, after, mesh)
            if followed is None:
                strided += 1
                assert any(isinstance(p, _StridedShard) for p in placements)
            else:
                assert same(theirs, deal(whole.numpy().reshape(after), followed, mesh))
    assert strided >= 10


def dtensor_views(
    before: tuple[int, ...], after: tuple[int, ...], mesh: Mesh
) -> Iterator[tuple[Placements, Placements]]:
    """All placements of Shard and Replicate that DTensor's view keeps, and those that it gives."""
    for dims in itertools.product((None, *range(len(before))), repeat=len(mesh.axes)):
        shards = [Replicate() if d is None else Shard(d) for d in dims]
        sizes = tuple(axis.size for axis in mesh.axes)
        try:
            kept, found = propagate_shape_and_sharding(shards, before, view_groups(before, after), sizes, True)
        except RuntimeError:  # it would have to be redistributed
            continue
        if list(kept) == shards:
            yield shards, found


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor | np.ndarray]) -> bool:
    """Whether every rank holds the same numbers in the same order."""
    return all(np.array_equal(np.asarray(x).ravel(), np.asarray(y).ravel()) for x, y in zip(left, right, strict=True))


def test_a_strided_shard_is_split_up_again_as_dtensor_does_it() -> None:
    mesh, whole = Mesh.of(x=3), np.arange(24)
    strided = _StridedShard(0, split_factor=2)  # of [6, 4], from [2, 3 / x, 4]
    _, placements = propagate_shape_and_sharding([strided], (6, 4), view_groups((6, 4), (2, 3, 4)), (3,), True)
    assert list(placements) == [Shard(1)]
    theirs = dtensor_parts(torch.from_numpy(whole).reshape(6, 4), [strided], mesh)
    assert same(theirs, deal(whole.reshape(2, 3, 4), Layout.ordered([[], ["x"], []], mesh), mesh))
