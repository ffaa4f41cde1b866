"""Over one axis: the same steps and the same price as in the space of all layouts."""

from __future__ import annotations

import itertools

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.cost.mesh_links import ClusterLinks
from autoplan.errors import LayoutError
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.links import UNIFORM, Links
from autoplan.redistribution.planner import Planner, Redistribution
from autoplan.redistribution.shortest_path import shortest

STATES = (S(0), S(1), R, I, P, PMAX)
SHAPES = ((8, 16), (64, 4096))
LINKS: dict[str, Links] = {"uniform": UNIFORM, "cluster": ClusterLinks(ClusterSpec.parse("2x8 h100-sxm").topology())}


def in_space(planner: Planner, source: Layout, target: Layout) -> tuple[list[str], float] | None:
    """The steps' operators and seconds, sought among all layouts of the axis."""
    known = planner._known(source), planner._known(target)
    ends = planner._ends(known[0].layout, known[1].layout, frozenset(), True)
    path = shortest(ends.space, ends.source, ends.target)
    if path is None:
        return None
    steps = [ends.space.collective(hop.source, hop.target, hop.exchange, planner.mesh) for hop in path]
    return [f"{s.op} {s.dims} {s.forward_bytes} {s.backward_bytes}" for s in steps], sum(
        ends.space.seconds[int(h.exchange), h.source, h.target] for h in path
    )


def on_the_line(planner: Planner, source: Layout, target: Layout) -> Redistribution | None:
    try:
        return planner.plan(source, target)
    except LayoutError:
        return None


@pytest.mark.parametrize("links", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ways", [2, 4, 8])
def test_one_axis_takes_the_steps_that_a_space_of_layouts_finds(
    shape: tuple[int, ...], ways: int, carries: bool, links: Links
) -> None:
    mesh = Mesh.of(dp=2, tp=ways)
    planner = Planner(TensorType(shape, "float32"), mesh, carries_gradient=carries, links=links)
    compared = 0
    for here, there in itertools.permutations(STATES, 2):
        source, target = (Layout.of(2, {"dp": S(0), "tp": state}, mesh) for state in (here, there))
        uneven = S(0) in (here, there) and shape[0] % (2 * ways) > 0
        if mixes(here, there) or uneven or (not carries and {here, there} == {R, I}):
            continue
        wanted, found = in_space(planner, source, target), on_the_line(planner, source, target)
        assert (wanted is None) == (found is None), f"{here} -> {there}"
        if wanted is not None and found is not None:
            steps = [f"{s.op} {s.dims} {s.forward_bytes} {s.backward_bytes}" for s in found.collectives]
            assert steps == wanted[0], f"{here} -> {there}"
            assert found.seconds == pytest.approx(wanted[1], rel=1e-12)
            compared += 1
    assert compared > 10


def mixes(here: State, there: State) -> bool:
    """Whether summands meet operands of max, which is refused before a path is sought."""
    return {here.reduce, there.reduce} == {"max", "sum"}
