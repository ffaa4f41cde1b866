"""From a layout of one shape to a layout of another, with the same elements in the same order.

A plan has three legs, on the shape before, on the common refinement of both and on the shape after, with a local
reshape before each: what a layout of one shape says, one of the next says as well (``refinement``). Mostly two of the
legs have no steps. Where a layout can't be refined, axes are moved away on its own shape first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.errors import LayoutError
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed import Collective
from autoplan.redistribution.apply import held_elements
from autoplan.redistribution.factors import check_layout
from autoplan.redistribution.links import UNIFORM, Links
from autoplan.redistribution.planner import Planner, Redistribution
from autoplan.redistribution.refinement import Refinement, Side, refine, to_refined
from autoplan.redistribution.reshape.detours import Detours

MOST_WAYS = 1000  # between the two sides' detours, priced at most


@dataclass(frozen=True)
class Leg:
    """Steps on one shape.

    shape           of the whole tensor
    source, target  layouts of that shape
    """

    shape: tuple[int, ...]
    source: Layout
    target: Layout
    collectives: tuple[Collective, ...]

    def local_shape(self, mesh: Mesh, rank: int) -> tuple[int, ...]:
        """As what a rank views what it holds before the first step."""
        return local_shape(self.shape, self.source, mesh, rank)


@dataclass(frozen=True)
class ReshapePlan:
    """Three legs, on the shapes before, refined and after; each rank views its part as ``Leg.local_shape`` says, then
    takes the leg's steps. The last one ends in the layout that was asked for.

    seconds     of all steps, forward and backward together
    peak_bytes  the most on a rank while one of them runs
    """

    legs: tuple[Leg, Leg, Leg]
    seconds: float
    peak_bytes: int

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(step for leg in self.legs for step in leg.collectives)


def local_shape(shape: Sequence[int], layout: Layout, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """The shape of one rank's part, of the first microbatch; ranks may differ where sizes don't divide."""
    local = []
    for size, axes in zip(shape, layout.dims, strict=True):
        for axis in axes:
            part = -(-size // mesh.size(axis))
            at = 0 if mesh.axis(axis).virtual else mesh.coordinate(rank, axis)
            size = max(0, min(part, size - at * part))
        local.append(size)
    return tuple(local)


def redistribute_reshape(
    source: Layout,
    before: Sequence[int],
    target: Layout,
    after: Sequence[int],
    dtype: str,
    mesh: Mesh,
    *,
    carries_gradient: bool,
    links: Links = UNIFORM,
) -> ReshapePlan:
    """The fastest way from a layout of the shape before to one of the shape after.

    Of all pairs of a layout that the source is brought to before it is refined, itself among them, and one that the
    target is reached from, the pair whose three legs are fastest; pairs that hold more than the source and the target
    only where there is no other. Every rank finds the same.

    ValueError where the shapes have different numbers of elements, LayoutError where a layout doesn't fit its shape and
    the mesh, and where no steps lead there.
    """
    check_layout(source, before, mesh)
    check_layout(target, after, mesh)
    reshaping = Reshaping(refine(before, after), (tuple(before), tuple(after)), dtype, mesh, carries_gradient, links)
    found = reshaping.fastest(source, target)
    if found is None:
        cause = f"no steps lead there from shape {tuple(before)} to {tuple(after)} on mesh {mesh}"
        remedy = "split microbatches along an outermost dim; reduce a P(max) before a gradient passes through it"
        raise LayoutError(f"{source} -> {target}", cause, remedy)
    return found


@dataclass(frozen=True)
class End:
    """A layout of one side that can be refined, and the way between it and the source or the target."""

    layout: Layout
    refined: Layout
    way: Redistribution


class Reshaping:
    """One reshape of one kind of tensor."""

    def __init__(
        self,
        refinement: Refinement,
        shapes: tuple[tuple[int, ...], tuple[int, ...]],
        dtype: str,
        mesh: Mesh,
        carries: bool,
        links: Links,
    ):
        self.refinement, self.mesh, self.carries = refinement, mesh, carries
        self.shapes = (shapes[0], refinement.shape, shapes[1])
        self.planners = tuple(
            Planner(TensorType(shape, dtype), mesh, carries_gradient=carries, links=links) for shape in self.shapes
        )

    def fastest(self, source: Layout, target: Layout) -> ReshapePlan | None:
        """An end that can be refined needs no detour: what its own shape can say, the refined one can. Only where the
        two name an axis differently, by its factors here and uneven there, one of them is gathered."""
        limit = max(self.held(0, source), self.held(2, target))
        for straight in (True, False):
            starts = self.ends(source, target, "before", straight)
            goals = self.ends(target, source, "after", straight)
            for most in (limit, math.inf):
                lean = ([end for end in ends if self.held(1, end.refined) <= most] for ends in (starts, goals))
                found = self.best(source, target, *lean)
                if found is not None:
                    return found
        return None

    def best(self, source: Layout, target: Layout, starts: Sequence[End], goals: Sequence[End]) -> ReshapePlan | None:
        """The fastest of all pairs, in ascending order of what is already known of them."""

        def known(i: int, j: int) -> tuple[float, int, int]:
            return starts[i].way.seconds + goals[j].way.seconds, i, j

        queue = [known(i, 0) for i in range(len(starts))] if goals else []  # sorted, as starts are
        found: ReshapePlan | None = None
        for _ in range(MOST_WAYS):
            if not queue:
                break
            seconds, i, j = heapq.heappop(queue)
            if found is not None and seconds > found.seconds:
                break
            if j + 1 < len(goals):
                heapq.heappush(queue, known(i, j + 1))
            way = self.way(1, starts[i].refined, goals[j].refined)
            plan = None if way is None else self.joined(source, target, starts[i], way, goals[j])
            if plan and (found is None or merit(plan) < merit(found)):
                found = plan
        return found

    def joined(self, source: Layout, target: Layout, start: End, way: Redistribution, goal: End) -> ReshapePlan:
        ends = ((source, start.layout), (start.refined, goal.refined), (goal.layout, target))
        ways = (start.way, way, goal.way)
        first, middle, last = (
            Leg(shape, *pair, found.collectives) for shape, pair, found in zip(self.shapes, ends, ways, strict=True)
        )
        seconds = sum(found.seconds for found in ways)
        return ReshapePlan((first, middle, last), seconds, max(found.peak_bytes for found in ways))

    def ends(self, layout: Layout, other: Layout, side: Side, straight: bool) -> list[End]:
        """Layouts of one side that can be refined (``detours``), the nearest to the source or the target first; the
        source or the target alone where it can be and the way shall be straight."""
        number = 0 if side == "before" else 2
        detours = Detours(self.refinement, side, self.shapes[number], self.shapes[2 - number], self.mesh, self.carries)
        straight = straight and detours.refines(layout)
        found = []
        for option in (layout,) if straight else detours.options(layout, other):
            refined = to_refined(option, self.refinement, side, self.mesh)
            pair = (layout, option) if side == "before" else (option, layout)
            way = None if refined is None else self.way(number, *pair)
            if refined is not None and way is not None:
                found.append(End(option, refined, way))
        return sorted(found, key=lambda end: (end.way.seconds, len(end.way.collectives)))

    def held(self, number: int, layout: Layout) -> int:
        return held_elements(layout, self.shapes[number], self.mesh)

    def way(self, number: int, source: Layout, target: Layout) -> Redistribution | None:
        """The fastest on one of the three shapes; None where there is none."""
        try:
            return self.planners[number].plan(source, target)
        except LayoutError:
            return None


def merit(plan: ReshapePlan) -> tuple[float, int, int]:
    return plan.seconds, len(plan.collectives), plan.peak_bytes
