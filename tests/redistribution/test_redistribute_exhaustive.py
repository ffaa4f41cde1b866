"""Redistributions by counting out: every pair of ordered layouts, executed on all ranks by the simulator.

A plan has to make, bit by bit, what slicing the whole tensor makes; its backward has to be its adjoint; no rank may
hold more than at one of the two ends; and the bytes measured have to be those of the price
(tests.support.redistribution).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import pytest

from autoplan.ir.layout import PMAX, I, Layout, P, R
from autoplan.ir.mesh import Mesh
from autoplan.redistribution import AxisLinks
from tests.support.layouts import (
    CUBE,
    GRID,
    LINE,
    MESHES,
    ODD,
    SQUARE,
    Pair,
    mindspore_layouts,
    ordered_layouts,
    pairs_of,
)
from tests.support.redistribution import Judge, bound, boxes_of, gather_then_slice
from tests.support.sampling import sampled, slow

ITEMSIZE = 4
CARRIED, NEUTRAL = (R, I, P), (R, P, PMAX)
STATES = [(CARRIED, True), (NEUTRAL, False)]
EVEN = {LINE: 16, GRID: 8, ODD: 12, SQUARE: 4, CUBE: 8}
"""A length that divides by all devices."""


def shape_of(rank: int, mesh: Mesh) -> tuple[int, ...]:
    return (EVEN[mesh],) * rank


def reducible(layouts: Iterable[Layout]) -> Iterator[Layout]:
    """Those without a maximum of sums, or sums of maxima: they aren't one another, so no layout says which is meant."""
    for layout in layouts:
        partial = {state for _, state in layout.rest if state.kind == "P"}
        if PMAX not in partial or len(partial) == 1:
            yield layout


def judge(shape: tuple[int, ...], mesh: Mesh, pairs: Iterable[Pair], carries: bool) -> float:
    """Elements that the busiest ranks receive forward, added up over all pairs; AssertionError where one is wrong."""
    court, received = Judge(shape, mesh, carries), 0.0
    for source, target in pairs:
        verdict = court.check(source, target)
        priced = verdict.plan.seconds / ITEMSIZE
        # a price counts whole bytes: where parts don't divide, less than is measured, on each level and each way
        even = shape and not any(size % EVEN[mesh] for size in shape)
        slack = 0 if even else 3 * len(verdict.plan.collectives)
        assert abs(verdict.busy - priced) <= slack, f"{source} -> {target}: {verdict}, priced {priced}"
        assert source != target or not verdict.plan.collectives, "identity is free"
        received += verdict.received
    return received


SPLITS = list(itertools.product((LINE, GRID, ODD, SQUARE), (1, 2, 3)))


@pytest.mark.parametrize(("mesh", "rank"), sampled(SPLITS, [case for case in SPLITS if case != (GRID, 3)]), ids=str)
def test_every_pair_of_splits(mesh, rank):
    """Of what carries a gradient, too: its backward is another exchange."""
    for carries in (False, True):
        judge(shape_of(rank, mesh), mesh, pairs_of(ordered_layouts(rank, mesh)), carries)


@pytest.mark.parametrize("rank", sampled([1, 2], [1]))
def test_every_pair_of_splits_over_prime_factors_and_three_axes(rank):
    judge(shape_of(rank, GRID), GRID, pairs_of(ordered_layouts(rank, GRID, factors=True)), False)
    judge(shape_of(rank, CUBE), CUBE, pairs_of(ordered_layouts(rank, CUBE)), False)


@pytest.mark.slow  # the document of redistributions is held to the same totals
def test_all_11130_pairs_of_2x2x2():
    """At zero latency, against the bound, gathering and slicing, and the totals of the known engines."""
    layouts, shape = ordered_layouts(3, CUBE), shape_of(3, CUBE)
    court, n = Judge(shape, CUBE), EVEN[CUBE] ** 3
    boxes = {layout: boxes_of(shape, layout, CUBE) for layout in layouts}
    received = {}
    for source, target in itertools.permutations(layouts, 2):
        verdict = court.check(source, target)
        assert verdict.busy * ITEMSIZE == verdict.plan.seconds
        least = bound(boxes[source], boxes[target])
        most = gather_then_slice(boxes[source], source, target, CUBE)
        assert least <= verdict.received <= most, (least, verdict, most)
        received[source, target] = verdict.received
    assert len(received) == 11_130
    assert sum(received.values()) <= 2_271 * n
    few = list(itertools.permutations(mindspore_layouts(3, CUBE), 2))
    assert len(few) == 1_122
    assert sum(received[pair] for pair in few) <= 272.25 * n


@pytest.mark.parametrize("rank", sampled([1, 2, 3], [1, 2]))
@pytest.mark.parametrize(("states", "carries"), STATES, ids=["P", "max"])
def test_every_pair_of_states_on_2x2(rank, states, carries):
    layouts = list(reducible(ordered_layouts(rank, SQUARE, states)))
    judge(shape_of(rank, SQUARE), SQUARE, pairs_of(layouts, 400), carries)


@pytest.mark.parametrize(
    ("mesh", "rank"), sampled(itertools.product((LINE, GRID, ODD), (1, 2)), [(LINE, 2), (GRID, 1), (ODD, 2)]), ids=str
)
def test_pairs_of_states_of_what_carries_no_gradient(mesh, rank):
    layouts = list(reducible(ordered_layouts(rank, mesh, NEUTRAL)))
    judge(shape_of(rank, mesh), mesh, pairs_of(layouts, 50), False)


DRAWN = [
    *((rank, mesh, CARRIED, True, False) for rank in (1, 2, 3) for mesh in (LINE, GRID, ODD, CUBE)),
    (3, CUBE, (R, P), False, False),
    (2, GRID, CARRIED, True, True),
    (3, GRID, (R,), False, True),
]


QUICK = [*DRAWN[:3], (2, ODD, CARRIED, True, False), (2, CUBE, CARRIED, True, False), (3, LINE, CARRIED, True, False)]
QUICK += DRAWN[-2:-1]  # every mesh and rank, factors among them


@pytest.mark.parametrize(("rank", "mesh", "states", "carries", "factors"), sampled(DRAWN, QUICK), ids=str)
def test_pairs_drawn_from_many(rank, mesh, states, carries, factors):
    pairs = pairs_of(ordered_layouts(rank, mesh, states, factors), 50)
    judge(shape_of(rank, mesh), mesh, pairs, carries)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "mesh", "states", "carries", "factors"), DRAWN, ids=str)
def test_all_of_many(rank, mesh, states, carries, factors):
    """Every mesh and rank with R, I and P: 76,176 pairs of 2×2×2 at rank 3 among them, and 1,521 of 4×2."""
    judge(shape_of(rank, mesh), mesh, pairs_of(ordered_layouts(rank, mesh, states, factors)), carries)


UNEVEN: Sequence[tuple[int, ...]] = [(17, 5), (3, 2), (0, 4), (7,), (1,), ()]
UNEVEN_TOO: Sequence[tuple[int, ...]] = [(1, 9), (0,), (5, 1, 3), (33, 16, 8, 1)]


@pytest.mark.parametrize("shape", UNEVEN, ids=str)
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_sizes_that_do_not_divide(mesh, shape):
    """Dims smaller than an axis, of one element, and of none."""
    for states, carries, most in (((R,), False, 60), (CARRIED, True, 15)):
        layouts = ordered_layouts(len(shape), mesh, states)
        judge(shape, mesh, pairs_of(layouts, most), carries)


@pytest.mark.parametrize("shape", [(17, 5), slow(((6, 10),)), slow(((5,),))], ids=str)
def test_prime_factors_where_sizes_do_not_divide(shape):
    """17 rows over x of 4 are 5, 5, 5, 2, over its factors 9 and 8 and then 5, 4, 4, 4: not the same layout."""
    for states, carries, most in (((R,), False, 150), (CARRIED, True, 60)):
        layouts = ordered_layouts(len(shape), GRID, states, factors=True)
        judge(shape, GRID, pairs_of(layouts, most), carries)


def test_factors_at_one_end_and_whole_axes_at_the_other():
    for states, carries in (((R,), False), (CARRIED, True)):
        factored, plain = (ordered_layouts(2, GRID, states, factors) for factors in (True, False))
        pairs = [pair for a, b in pairs_of(layouts=(*factored, *plain), most=300) for pair in ((a, b), (b, a))]
        judge((8, 8), GRID, [pair for pair in pairs if (pair[0] in plain) != (pair[1] in plain)], carries)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*UNEVEN, *UNEVEN_TOO], ids=str)
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_all_sizes_that_do_not_divide(mesh, shape):
    for states, carries in (((R,), False), (CARRIED, True)):
        layouts = ordered_layouts(len(shape), mesh, states)
        judge(shape, mesh, pairs_of(layouts, 4000), carries)


LARGER = {1: 4096, 2: 32, 3: 4}
LATENT = AxisLinks.of({"x": (5e-7, 1e11), "y": (1e-7, 4e11), "z": (1e-7, 4e11)})
"""Where messages take time to start: plans are then of all-to-alls, gathers and permutes, over one axis and several."""


def judge_latent(rank: int, mesh: Mesh, pairs: Iterable[Pair], carries: bool) -> set[str]:
    """Operators of the plans, which are as right as any others."""
    shape = tuple(size * LARGER[rank] for size in shape_of(rank, mesh))
    court, ops = Judge(shape, mesh, carries, LATENT), set()
    for source, target in pairs:
        plan = court.planner.plan(source, target)
        court.execute(source, target, plan)
        ops |= {step.op for step in plan.collectives}
    return ops


STANDARD = {"all_gather", "all_gather_invariant", "shard", "shard_invariant", "all_to_all", "to_replicate",
            "all_reduce", "all_reduce_to_replicate", "reduce_scatter", "shard_to_partial", "permute"}  # fmt: skip


@pytest.mark.parametrize(
    ("rank", "mesh"), sampled([(1, GRID), (2, GRID), (2, ODD), (2, CUBE)], [(2, GRID), (2, ODD)]), ids=str
)
def test_plans_where_messages_take_time(rank, mesh):
    pairs = pairs_of(ordered_layouts(rank, mesh, CARRIED), 100)
    ops = judge_latent(rank, mesh, pairs, True)
    assert ops >= STANDARD - ({"permute", "all_to_all"} if rank == 1 else {"permute"} if mesh is ODD else set())


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "mesh", "states", "carries", "factors"), DRAWN, ids=str)
def test_all_plans_where_messages_take_time(rank, mesh, states, carries, factors):
    judge_latent(rank, mesh, pairs_of(ordered_layouts(rank, mesh, states, factors), 4000), carries)


@pytest.mark.parametrize("rank", [1, 2])
def test_no_way_round_is_cheaper(rank):
    """The triangle inequality over all triples of 2×2 in which the one between holds no more than the ends."""
    for states, carries in (((R,), False), (CARRIED, True)):
        layouts = ordered_layouts(rank, SQUARE, states)
        court = Judge(shape_of(rank, SQUARE), SQUARE, carries)
        price = {pair: court.planner.plan(*pair).seconds for pair in itertools.product(layouts, repeat=2)}
        held = {layout: court.value(layout)[0].size for layout in layouts}
        for a, b, c in itertools.product(layouts, repeat=3):
            if carries and held[b] > max(held[a], held[c]):
                continue
            assert price[a, c] <= price[a, b] + price[b, c], f"{a} -> {c} dearer than by {b}"
