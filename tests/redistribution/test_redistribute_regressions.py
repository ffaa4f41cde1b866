"""Redistributions on which known engines gather too much, by name; reshapes have tests of their own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoplan.ir.layout import I, Layout, P, R
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution import UNIFORM, AxisLinks, Links
from autoplan.redistribution.exchange.boxes import Dims
from tests.support.layouts import CUBE, GRID, LINE, MESHES, ODD, ordered_layouts, pairs_of
from tests.support.redistribution import Judge, Verdict, bound, boxes_of, gather_then_slice

SLOW = AxisLinks.of({axis: (1e-5, 1e11) for axis in "abxyz"})
"""A message takes as long to start as a megabyte takes to cross."""


def moved(
    shape: tuple[int, ...], mesh: Mesh, source: Dims, target: Dims, links: Links = UNIFORM, carries: bool = False
) -> Verdict:
    """What the plan does, after the judge has executed it."""
    return Judge(shape, mesh, carries, links).check(Layout.ordered(source, mesh), Layout.ordered(target, mesh))


def least_and_most(shape: tuple[int, ...], mesh: Mesh, source: Dims, target: Dims) -> tuple[float, float]:
    """Elements that some rank must receive, and those of gathering and slicing."""
    ends = [Layout.ordered(dims, mesh) for dims in (source, target)]
    boxes = [boxes_of(shape, layout, mesh) for layout in ends]
    return bound(*boxes), gather_then_slice(boxes[0], *ends, mesh)


def named(collectives: tuple[Collective, ...]) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    return [(step.op, step.axes, step.dims) for step in collectives]


@pytest.mark.parametrize("links", [UNIFORM, SLOW], ids=["uniform", "latency"])
def test_two_axes_of_different_size_change_places(links):
    """[16, 8] on (4, 2): dim 0 by b and dim 1 by a -> dim 0 by a and dim 1 by b. The greedy engines gather: one axis
    has to make way for the other."""
    mesh = Mesh.of(a=4, b=2)
    swap = ((16, 8), mesh, (("b",), ("a",)), (("a",), ("b",)))
    verdict, (least, most) = moved(*swap, links=links), least_and_most(*swap)
    assert not any("gather" in step.op for step in verdict.plan.collectives)
    assert verdict.received == least == 16 and most == 112
    assert moved(*swap, links=links, carries=True).busy == 2 * least


@pytest.mark.parametrize("links", [UNIFORM, SLOW], ids=["uniform", "latency"])
def test_three_axes_in_a_cycle(links):
    """(x, y, z) -> (y, z, x) on 2×2×2: every rank takes over the part of another, in one message."""
    cycle = ((8, 8, 8), CUBE, (("x",), ("y",), ("z",)), (("y",), ("z",), ("x",)))
    verdict, (least, most) = moved(*cycle, links=links), least_and_most(*cycle)
    assert [step.op for step in verdict.plan.collectives] == ["permute"]
    assert verdict.received == least == 64 and most == 448
    assert moved(*cycle, links=links, carries=True).busy == 2 * least


XLA_15207 = ((64, 64, 64), GRID, (("y",), (), ("x",)), ((), ("x", "y"), ()))


def test_xla_15207_in_two_all_to_alls():
    """(y, –, x) -> (–, (x, y), –) on 4×2, where XLA rematerialised the whole tensor."""
    verdict = moved(*XLA_15207, links=SLOW)
    assert named(verdict.plan.collectives) == [("all_to_all", ("x",), (2, 1)), ("all_to_all", ("y",), (0, 1))]
    part = 64**3 / 8
    assert verdict.received == part * 3 / 4 + part / 2
    assert moved(*XLA_15207, links=SLOW, carries=True).busy == 2 * verdict.received


def test_xla_15207_where_messages_start_at_once():
    """Without latency, what has to be received and no more: the second all-to-all would send on what the first sent."""
    verdict, (least, most) = moved(*XLA_15207), least_and_most(*XLA_15207)
    assert verdict.received == least == 64**3 / 8 * 7 / 8 and most == 64**3 * 7 / 8
    assert len(verdict.plan.collectives) == 1


def test_xla_15207_between_nodes_and_inside_one():
    """x across nodes, y inside: the outer all-to-all first or last, never a gather, and never dearer than the two."""
    links = AxisLinks.of({"x": (1e-5, 2.5e10), "y": (2e-6, 4e11)})
    verdict = moved(*XLA_15207, links=links)
    assert not any("gather" in step.op for step in verdict.plan.collectives)
    x, y = GRID.axis("x"), GRID.axis("y")
    size = 64**3 * 4 // 8
    two = links.collective_s("all-to-all", size, [x]) + links.collective_s("all-to-all", size, [y])
    assert verdict.plan.seconds <= two


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_17_by_5(mesh):
    """Rows of ceil(17/n), of which the last ranks have fewer or none: every pair of splits, to the last element."""
    court = Judge((17, 5), mesh)
    layouts = ordered_layouts(2, mesh)
    boxes = {layout: boxes_of(court.shape, layout, mesh) for layout in layouts}
    for source, target in pairs_of(layouts, 400):
        verdict = court.check(source, target)
        assert verdict.received >= bound(boxes[source], boxes[target])
        assert len(verdict.plan.collectives) > 0 or np.array_equal(boxes[source], boxes[target])


@pytest.mark.parametrize("mesh", [LINE, GRID, ODD, CUBE], ids=str)
def test_33_by_16_by_8_by_1(mesh):
    """A dim that doesn't divide, one that does, one that does for some axes only, and one of a single element."""
    court = Judge((33, 16, 8, 1), mesh, carries=True)
    for source, target in pairs_of(ordered_layouts(4, mesh), 60):
        court.check(source, target)


@pytest.mark.parametrize("links", [UNIFORM, SLOW], ids=["uniform", "latency"])
def test_uneven_sums_are_reduced_to_uneven_parts(links):
    """P -> S of 17 rows over 4: no reduce-scatter does that. Rows are 5, 5, 5, 2: three summands of 25 elements come
    to a rank, no more."""
    court = Judge((17, 5), GRID, True, links)
    split = Layout.ordered((("x",), ()), GRID)
    assert court.check(Layout.ordered(((), ()), GRID, {"x": P}), split).received == 75
    for before, after in itertools.product((P, I, R), (R, I)):
        here, there = (Layout.ordered(((), ()), GRID, {"x": state}) for state in (before, after))
        court.check(here, there)
        court.check(here, split)
        court.check(split, there)
