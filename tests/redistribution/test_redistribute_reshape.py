"""Plans from a layout of one shape to a layout of another, executed on every rank, against reshaping the whole tensor
and slicing it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from autoplan.errors import LayoutError
from autoplan.ir.layout import PAVG, PMAX, I, Layout, P, R, State
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.links import UNIFORM, AxisLinks
from autoplan.redistribution.refinement import Side, follow_reshape, refine, to_refined
from autoplan.redistribution.reshape.plan import ReshapePlan, Reshaping, local_shape, redistribute_reshape
from autoplan.redistribution.simulate import deal, dual, execute, execute_backward, pairing
from tests.support.reshapes import even, every_layout, plain_layouts


def planned(
    source: Layout, before: tuple[int, ...], target: Layout, after: tuple[int, ...], mesh: Mesh, carries: bool = True
) -> ReshapePlan:
    return redistribute_reshape(source, before, target, after, "float32", mesh, carries_gradient=carries)


def check(
    source: Layout, before: tuple[int, ...], target: Layout, after: tuple[int, ...], mesh: Mesh, carries: bool = True
) -> ReshapePlan:
    """The plan, executed on every rank against reshaping the whole tensor and slicing it; where it carries a gradient,
    the backward against its adjoint; where both ends can be refined, what is held against the ends."""
    plan, whole = planned(source, before, target, after, mesh, carries), np.arange(1.0, math.prod(before) + 1)
    first = parts = deal(whole.reshape(before), source, mesh)
    held = 0
    for leg in plan.legs:
        parts = [part.reshape(leg.local_shape(mesh, rank)) for rank, part in enumerate(parts)]
        done = execute(leg.collectives, parts, mesh)
        parts, held = done.parts, max(held, done.held)
    wanted = deal(whole.reshape(after), target, mesh)
    if not any(state.kind == "P" for _, state in target.rest):
        assert all(np.array_equal(x, y) for x, y in zip(parts, wanted, strict=True)), plan
    refinement = refine(before, after)
    refined = (to_refined(source, refinement, "before", mesh), to_refined(target, refinement, "after", mesh))
    if all(refined) and not named_apart(refined, refinement.shape, mesh):
        assert held <= max(part.size for part in (*first, *wanted)), plan
    if carries:
        gradients = grown = deal((np.arange(math.prod(after)) % 7.0).reshape(after), dual(target), mesh)
        for leg in reversed(plan.legs):
            shapes = [local_shape(leg.shape, leg.target, mesh, rank) for rank in range(mesh.devices)]
            grown = [g.reshape(shape) for g, shape in zip(grown, shapes, strict=True)]
            grown = execute_backward(leg.collectives, grown, mesh).parts
        grown = [g.reshape(part.shape) for g, part in zip(grown, first, strict=True)]
        assert pairing(parts, gradients, target, mesh) == pytest.approx(pairing(first, grown, source, mesh), rel=1e-12)
    return plan


def named_apart(pair: Sequence[Layout | None], shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether one layout names factors of an axis where sizes don't divide for the other."""
    both = [layout for layout in pair if layout]
    return any("." in a for x in both for a in x.axes) and not all(even(x, shape, mesh) for x in both)


def ops(plan: ReshapePlan) -> list[list[str]]:
    return [[f"{step.op} {step.axis}" for step in leg.collectives] for leg in plan.legs]


@pytest.mark.parametrize(
    ("before", "after", "mesh"),
    [
        ((4, 6), (24,), Mesh.of(x=2, y=2)),
        ((12,), (3, 4), Mesh.of(x=4)),
        ((6,), (2, 3), Mesh.of(x=4)),
        ((6,), (2, 3), Mesh.of(x=6)),
        ((6,), (3, 2), Mesh.of(x=2, y=3)),
        ((5, 4), (5, 2, 2), Mesh.of(x=2)),
        ((1, 4), (4, 1), Mesh.of(x=2)),
        ((0, 4), (0, 2, 2), Mesh.of(x=2)),
    ],
    ids=str,
)
def test_every_pair_of_layouts_of_small_shapes(before: tuple[int, ...], after: tuple[int, ...], mesh: Mesh) -> None:
    for source in plain_layouts(before, mesh):
        for target in plain_layouts(after, mesh):
            check(source, before, target, after, mesh)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 4, 6), (8, 2, 3)),
        ((2, 4, 3 * 2 * 2), (2, 4, 3, 2, 2)),
        ((5, 2, 4), (5, 2, 2, 2)),
        ((4, 6), (6, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mesh", [Mesh.of(x=2, y=2), Mesh.of(x=4), Mesh.of(x=2, y=3)], ids=str)
def test_pairs_of_layouts_of_larger_shapes(before: tuple[int, ...], after: tuple[int, ...], mesh: Mesh) -> None:
    draw = random.Random(0)
    sources, targets = list(plain_layouts(before, mesh)), list(plain_layouts(after, mesh))
    for _ in range(10):
        check(draw.choice(sources), before, draw.choice(targets), after, mesh)


def test_what_can_be_relabelled_takes_no_steps() -> None:
    for mesh in (Mesh.of(x=2, y=2), Mesh.of(x=6)):
        for before, after in [((4, 6), (24,)), ((12, 6), (2, 6, 6)), ((4, 6), (6, 4))]:
            for source in every_layout(len(before), mesh):
                target = follow_reshape(source, before, after, mesh)
                if target is not None and even(source, before, mesh):
                    plan = planned(source, before, target, after, mesh)
                    assert plan.collectives == () and plan.seconds == 0


def test_merging_an_inner_dim_that_is_split_is_one_all_to_all_on_the_refined_shape() -> None:
    mesh = Mesh.of(x=2)
    plan = check(Layout.ordered([[], ["x"]], mesh), (4, 6), Layout.ordered([["x"]], mesh), (24,), mesh)
    assert ops(plan) == [[], ["all_to_all x"], []]
    assert plan.legs[1].shape == (4, 6)
    kept = check(Layout.ordered([["x"], []], mesh), (4, 6), Layout.ordered([["x"]], mesh), (24,), mesh)
    assert ops(kept) == [[], [], []]


def test_an_inner_dim_that_is_split_gathers_one_axis_alone() -> None:
    """(a, b / x y) -> (a b / x): x moves, y is gathered: [a / x, b] is all that it takes."""
    mesh = Mesh.of(x=2, y=2)
    plan = check(Layout.ordered([[], ["x", "y"]], mesh), (4, 4), Layout.ordered([["x"]], mesh), (16,), mesh)
    assert all("all_to_all" in op or "gather" in op or "exchange" in op for op in ops(plan)[1])
    assert plan.seconds <= 2 * (8 * 4 - 4 * 4) + 2 * 16  # bytes forward and backward


def test_six_over_four_moves_its_axis_away_first() -> None:
    mesh = Mesh.of(x=4)
    six = Layout.ordered([["x"]], mesh)
    splits: list[list[list[str]]] = [[["x"], []], [[], ["x"]], [[], []]]
    for dims in splits:
        plan = check(six, (6,), Layout.ordered(dims, mesh), (2, 3), mesh)
        assert ops(plan)[0] == ["exchange x"] and plan.legs[0].target == Layout.ordered([[]], mesh)
        back = check(Layout.ordered(dims, mesh), (2, 3), six, (6,), mesh)
        assert ops(back)[2] == ["exchange x"]


def test_heads_of_a_fused_projection() -> None:
    """Contiguous blocks of [3 h d] are no heads: they go to the other dims first. Split by heads it is a strided shard,
    and a relabelling on the refined shape."""
    mesh = Mesh.of(x=2)
    fused, heads = (2, 3, 3 * 4 * 2), (2, 3, 3, 4, 2)
    plan = check(
        Layout.ordered([[], [], ["x"]], mesh), fused, Layout.ordered([[], [], [], ["x"], []], mesh), heads, mesh
    )
    assert ops(plan) == [["all_to_all x"], ["all_to_all x"], []]
    batch = check(
        Layout.ordered([["x"], [], []], mesh), fused, Layout.ordered([[], [], [], ["x"], []], mesh), heads, mesh
    )
    assert ops(batch) == [[], ["all_to_all x"], []]
    inside = Layout.ordered([["x"], [], []], mesh)  # [h 3 d], interleaved: heads are the outermost part
    kept = check(inside, (4 * 3 * 2, 2, 5), Layout.ordered([["x"], [], [], [], []], mesh), (4, 3, 2, 2, 5), mesh)
    assert kept.collectives == ()


def test_heads_and_back_through_a_transpose() -> None:
    """[b, s, h d] -> [b, s, h, d] -> [b, h, s, d] and back, heads split by x, batch by y: nothing moves."""
    mesh = Mesh.of(x=2, y=2)
    rows, merged = (2, 3, 8), (2, 3, 4, 2)
    source = Layout.ordered([["y"], [], ["x"]], mesh)
    split = Layout.ordered([["y"], [], ["x"], []], mesh)
    assert check(source, rows, split, merged, mesh).collectives == ()
    assert check(split, merged, source, rows, mesh).collectives == ()


def test_batch_and_sequence_flattened() -> None:
    mesh = Mesh.of(x=2, y=2)
    flat = Layout.ordered([["x", "y"], []], mesh)
    assert check(Layout.ordered([["x", "y"], [], []], mesh), (4, 3, 5), flat, (12, 5), mesh).collectives == ()
    both = Layout.ordered([["x"], ["y"], []], mesh)
    assert check(both, (2, 4, 5), flat, (8, 5), mesh).collectives == ()
    swapped = check(Layout.ordered([["y"], ["x"], []], mesh), (2, 4, 5), flat, (8, 5), mesh)
    assert ops(swapped) == [[], ["permute x,y"], []]


def test_states_beside_the_dims() -> None:
    mesh = Mesh.of(x=2, y=2)
    shapes = ((4, 6), (24,))
    for state, other in itertools.product((R, I, P), (R, I)):
        source = Layout.ordered([[], ["x"]], mesh, {"y": state})
        check(source, shapes[0], Layout.ordered([["x"]], mesh, {"y": other}), shapes[1], mesh)
        check(source, shapes[0], Layout.ordered([["y"]], mesh, {"x": other}), shapes[1], mesh)
    uneven = Layout.ordered([["x"], []], mesh, {"y": P})
    check(uneven, (3, 4), Layout.ordered([["y"]], mesh, {"x": I}), (12,), mesh)
    neutral: list[State] = [R, P, PAVG, PMAX]
    for state in neutral:
        source = Layout.ordered([[], ["x"]], mesh, {"y": state})
        check(source, shapes[0], Layout.ordered([["x", "y"]], mesh), shapes[1], mesh, carries=False)


@pytest.mark.parametrize(
    ("before", "after", "mesh"),
    [((4, 6), (6, 4), Mesh.of(x=2, y=2)), ((12,), (2, 6), Mesh.of(x=2, y=3)), ((12,), (4, 3), Mesh.of(x=4))],
    ids=str,
)
def test_no_pair_of_detours_is_faster(before: tuple[int, ...], after: tuple[int, ...], mesh: Mesh) -> None:
    """Against all pairs of a layout that the source is brought to and one that the target is reached from."""
    reshaping = Reshaping(refine(before, after), (before, after), "float32", mesh, True, UNIFORM)
    sides: tuple[tuple[tuple[int, ...], Side], ...] = ((before, "before"), (after, "after"))
    firsts, lasts = (
        [(x, y) for x in every_layout(len(shape), mesh) if (y := to_refined(x, reshaping.refinement, side, mesh))]
        for shape, side in sides
    )
    draw = random.Random(1)
    sources, targets = list(plain_layouts(before, mesh)), list(plain_layouts(after, mesh))
    for source, target in ((draw.choice(sources), draw.choice(targets)) for _ in range(6)):
        plan = reshaping.fastest(source, target)
        assert plan is not None
        limit = max(
            reshaping.held(0, source), reshaping.held(2, target), *(reshaping.held(1, leg) for leg in ends(plan))
        )
        starts = [(way.seconds, x) for m, x in firsts if (way := reshaping.way(0, source, m))]
        goals = [(way.seconds, x) for n, x in lasts if (way := reshaping.way(2, n, target))]
        for (start_s, start), (goal_s, goal) in itertools.product(starts, goals):
            if max(reshaping.held(1, start), reshaping.held(1, goal)) <= limit and start_s + goal_s < plan.seconds:
                way = reshaping.way(1, start, goal)
                assert way is None or start_s + way.seconds + goal_s >= plan.seconds * (1 - 1e-9), (source, target)


def ends(plan: ReshapePlan) -> tuple[Layout, Layout]:
    return plan.legs[1].source, plan.legs[1].target


def test_links_decide_which_axis_moves() -> None:
    """Strided over both: the slow axis stays where it is."""
    mesh = Mesh.of(slow=2, fast=2)
    links = AxisLinks.of({"slow": (0.0, 1.0), "fast": (0.0, 100.0)})
    source, target = Layout.ordered([["slow"], ["fast"]], mesh), Layout.ordered([["slow", "fast"]], mesh)
    plan = redistribute_reshape(source, (8, 6), target, (48,), "float32", mesh, carries_gradient=True, links=links)
    assert ops(plan) == [[], ["all_to_all fast"], []]


def test_microbatches_stay() -> None:
    mesh = Mesh.of(x=2, mb=2)
    source, target = Layout.ordered([["mb", "x"]], mesh), Layout.ordered([["mb"], ["x"]], mesh)
    plan = planned(source, (8,), target, (2, 4), mesh)
    assert plan.collectives == () and plan.legs[2].local_shape(mesh, 0) == (1, 2)
    moved = planned(source, (8,), Layout.ordered([["mb"], []], mesh), (2, 4), mesh)
    assert [step.op for step in moved.collectives] == ["all_gather"]
    with pytest.raises(LayoutError, match=r"no steps lead there from shape \(4, 6\) to \(24,\)"):
        planned(Layout.ordered([[], ["mb"]], mesh), (4, 6), Layout.ordered([["mb"]], mesh), (24,), mesh)
