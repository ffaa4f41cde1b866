"""Layout to layout, as the cheapest sequence of typed steps.

On one axis a tensor passes from one state to another by one step, whose backward is forced by the states' duals
(``layout.State.gradient``); ``STEPS`` lists them all. Over several axes the steps come in an order: of the axes that
split one dim only the innermost can leave it, and one that enters becomes the innermost. So a sequence is a path over
layouts with *ordered* axes, and the shortest one is taken, priced by the bytes that each device receives forward and
backward. On the way no rank holds more than at the start or at the end, unless there is no other path.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.errors import LayoutError
from autoplan.graph import DTYPE_BYTES, TensorType
from autoplan.layout import PMAX, I, Layout, P, R, S, State
from autoplan.mesh import Axis, Mesh
from autoplan.typed import Collective


@dataclass(frozen=True)
class Step:
    """One change of state on one axis.

    op        function of autoplan.runtime.collectives
    forward, backward   what crosses the links, "" where nothing does
    """

    op: str
    forward: str = ""
    backward: str = ""


STEPS = {
    ("S", "R"): Step("all_gather", "all-gather", "reduce-scatter"),
    ("S", "I"): Step("all_gather_invariant", "all-gather", ""),
    ("R", "S"): Step("shard"),
    ("I", "S"): Step("shard_invariant", "", "all-gather"),
    ("S", "S"): Step("all_to_all", "all-to-all", "all-to-all"),
    ("I", "R"): Step("to_replicate", "", "all-reduce"),
    ("P", "I"): Step("all_reduce", "all-reduce", ""),
    ("P", "R"): Step("all_reduce_to_replicate", "all-reduce", "all-reduce"),
    ("P", "S"): Step("reduce_scatter", "reduce-scatter", "all-gather"),
    ("R", "I"): Step("to_invariant"),
    ("R", "P"): Step("replicate_to_partial"),
    ("I", "P"): Step("invariant_to_partial"),
    ("S", "P"): Step("shard_to_partial"),
}
"""(kind of the source, kind of the target) -> the step, for a tensor that carries a gradient."""

NEUTRAL_STEPS = {
    ("S", "R"): Step("all_gather", "all-gather"),
    ("R", "S"): Step("shard"),
    ("S", "S"): Step("all_to_all", "all-to-all"),
    ("P", "R"): Step("all_reduce", "all-reduce"),
    ("P", "S"): Step("reduce_scatter", "reduce-scatter"),
    ("R", "P"): Step("replicate_to_partial"),
    ("S", "P"): Step("shard_to_partial"),
}
"""The same for one that carries none: R and I are one, and nothing comes back."""

RECEIVED = {"": 0, "all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
"""Bytes a device receives, in units of (n-1)/n of the collective's size (Thakur et al. 2005, section 4)."""


def transition(source: State, target: State, carries_gradient: bool) -> str | None:
    """The function of autoplan.runtime.collectives that takes an axis from one state to another.

    "" where there is nothing to do, None where there is no such step: nothing becomes P(max), and a P(max) that
    carries a gradient can't be reduced (which operand won is not known to the others).
    """
    source, target = neutral(source, carries_gradient), neutral(target, carries_gradient)
    if source == target:
        return ""
    step = find_step(source, target, carries_gradient)
    return None if step is None else step.op


def neutral(state: State, carries_gradient: bool) -> State:
    """R in place of I for a tensor that carries no gradient."""
    return R if state == I and not carries_gradient else state


def find_step(source: State, target: State, carries_gradient: bool) -> Step | None:
    """The step between two different states, None where there is none."""
    if PMAX in (source, target):
        return Step("all_reduce_max", "all-reduce") if target == R and not carries_gradient else None
    return (STEPS if carries_gradient else NEUTRAL_STEPS).get((source.kind, target.kind))


def redistribute(
    source: Layout, target: Layout, type: TensorType, mesh: Mesh, *, carries_gradient: bool
) -> tuple[Collective, ...]:
    """The cheapest sequence of single steps from one layout to another; empty where both are the same.

    Least is the sum, over steps, forward and backward, of the bytes one device receives; among equals the fewest
    steps, then the alphabet, so that every rank finds the same. Axes of size 1 are in every state at once.

    LayoutError where there is none: the microbatches' axis would change, or a P(max) that carries a gradient.
    """
    start, goal = (simplify(layout, mesh, carries_gradient) for layout in (source, target))
    if start == goal:
        return ()
    if any(axis.virtual and start.state(axis.name) != goal.state(axis.name) for axis in sized(mesh)):
        cause = "microbatches follow one another, so nothing can be exchanged between them"
        raise LayoutError(f"{source} -> {target}", cause, "give the value one state on axis mb")
    search = Search(goal, type, mesh, carries_gradient, movable(start, goal, mesh))
    path = search.direct(start) or search.shortest(start, limit=max(search.held(start), search.held(goal)))
    path = search.shortest(start, limit=type.elements) if path is None else path
    if path is None:
        cause = f"no sequence of steps leads there for a tensor of shape {type.shape} on mesh {mesh}"
        raise LayoutError(f"{source} -> {target}", cause, "reduce a P(max) before a gradient passes through it")
    return path


def sized(mesh: Mesh) -> tuple[Axis, ...]:
    """The axes that can hold different parts: those of size above 1."""
    return tuple(axis for axis in mesh.axes if axis.size > 1)


def simplify(layout: Layout, mesh: Mesh, carries_gradient: bool) -> Layout:
    """The layout on the axes of size above 1, with R for I where no gradient is carried."""
    names = {axis.name for axis in sized(mesh)}
    dims = tuple(tuple(a for a in axes if a in names) for axes in layout.dims)
    rest = tuple((a, neutral(s, carries_gradient)) for a, s in layout.rest if a in names)
    return Layout(dims, rest)


def movable(start: Layout, goal: Layout, mesh: Mesh) -> tuple[Axis, ...]:
    """Device axes that may have to change: those in two states, and those that split a dim beside one of these."""
    differing = {a.name for a in sized(mesh) if start.state(a.name) != goal.state(a.name)}
    touched = set(differing)
    for here, there in zip(start.dims, goal.dims, strict=True):
        if here != there or differing & {*here, *there}:
            touched |= {*here, *there}
    return tuple(axis for axis in mesh.device_axes if axis.name in touched)


class Search:
    """Dijkstra's algorithm over the layouts with ordered axes that lead to one goal."""

    def __init__(self, goal: Layout, type: TensorType, mesh: Mesh, carries: bool, axes: tuple[Axis, ...]):
        self.goal, self.type, self.mesh, self.carries, self.axes = goal, type, mesh, carries, axes
        self.common = math.lcm(*(axis.size for axis in axes))  # prices are integers in units of 1/common bytes

    def direct(self, start: Layout) -> tuple[Collective, ...] | None:
        """The one step that leads there, where there is one: no way round is cheaper."""
        return next(((step,) for step, there in self.neighbours(start) if there == self.goal), None)

    def shortest(self, start: Layout, limit: int) -> tuple[Collective, ...] | None:
        """The steps of the cheapest path on which no rank holds more than ``limit`` elements; None: there is none."""
        queue: list[tuple[int, int, tuple[str, ...], int, Layout, tuple[Collective, ...]]] = [(0, 0, (), 0, start, ())]
        done: set[Layout] = set()
        pushed = 0
        while queue:
            price, length, names, _, layout, path = heapq.heappop(queue)
            if layout == self.goal:
                return path
            if layout in done:
                continue
            done.add(layout)
            for step, there in self.neighbours(layout):
                if there not in done and self.held(there) <= limit:
                    pushed += 1
                    key = (price + self.price(step), length + 1, (*names, f"{step.op} {step.axis} {step.dims}"))
                    heapq.heappush(queue, (*key, pushed, there, (*path, step)))
        return None

    def held(self, layout: Layout) -> int:
        """Elements on one rank."""
        return math.prod(layout.local_shape(self.type.shape, self.mesh))

    def price(self, step: Collective) -> int:
        """Bytes one device receives, forward and backward, times ``common``."""
        size = self.mesh.size(step.axis)
        received = RECEIVED[step.forward] * step.forward_bytes + RECEIVED[step.backward] * step.backward_bytes
        return received * (size - 1) * (self.common // size)

    def neighbours(self, layout: Layout) -> Iterator[tuple[Collective, Layout]]:
        """Every layout that one step reaches."""
        whole = (R, I) if self.carries else (R,)
        for axis in self.axes:
            here = layout.state(axis.name)
            if here.kind == "S" and layout.dims[here.dim][-1] != axis.name:
                continue
            partial = (P,) if self.goal.state(axis.name) == P else ()  # summands are never made only to be reduced
            for state in (*(S(dim) for dim in range(layout.rank)), *whole, *partial):
                step = find_step(here, state, self.carries) if state != here else None
                there = self.moved(layout, axis, state) if step else None
                if step and there:
                    yield self.collective(step, axis, (here, state), (layout, there)), there

    def moved(self, layout: Layout, axis: Axis, state: State) -> Layout | None:
        """``change``, but None where a size doesn't divide."""
        there = change(layout, axis.name, state, self.mesh)
        if state.kind == "S":
            ways = math.prod(self.mesh.size(a) for a in there.dims[state.dim])
            if self.type.shape[state.dim] % ways:
                return None
        return there

    def collective(
        self, step: Step, axis: Axis, states: tuple[State, State], layouts: tuple[Layout, Layout]
    ) -> Collective:
        held = max(self.held(layout) for layout in layouts)
        return sized_step(step, axis.name, states, held * DTYPE_BYTES[self.type.dtype], self.carries)


def sized_step(step: Step, axis: str, states: tuple[State, State], size: int, carries: bool) -> Collective:
    """A step with its size in bytes, which for every kind is the larger of what a rank holds before and after."""
    backward = step.backward if carries else ""
    dims = tuple(state.dim for state in states if state.kind == "S")
    forward_bytes, backward_bytes = (size if kind else 0 for kind in (step.forward, backward))
    return Collective(step.op, axis, dims, step.forward, backward, forward_bytes, backward_bytes)


def change(layout: Layout, axis: str, state: State, mesh: Mesh) -> Layout:
    """The layout with one axis in another state, innermost where it then splits a dim."""
    dims = [tuple(a for a in axes if a != axis) for axes in layout.dims]
    rest = [(a, s) for a, s in layout.rest if a != axis]
    if state.kind == "S":
        dims[state.dim] += (axis,)
    else:
        rest = sorted([*rest, (axis, state)], key=lambda pair: mesh.names.index(pair[0]))
    return Layout(tuple(dims), tuple(rest))


def follow(
    layout: Layout, step: Collective, type: TensorType, mesh: Mesh, *, carries_gradient: bool
) -> tuple[Layout, Collective]:
    """Where one collective leads from a layout (``simplify``), and that collective as it would be written there, with
    its kinds and sizes; ValueError, saying why, where it can't be taken."""
    if step.axis not in layout.axes:
        raise ValueError(f"axis {step.axis} holds nothing that could be exchanged")
    here = layout.state(step.axis)
    if here.kind == "S" and layout.dims[here.dim][-1] != step.axis:
        raise ValueError(f"{step.op} over {step.axis}: inside it, {layout.dims[here.dim][-1]} splits dim {here.dim}")
    for there in landing(layout.rank, step, here):
        found = find_step(here, there, carries_gradient) if there != here else None
        if found is not None and found.op == step.op:
            after = change(layout, step.axis, there, mesh)
            held = max(math.prod(x.local_shape(type.shape, mesh)) for x in (layout, after))
            size = held * DTYPE_BYTES[type.dtype]
            return after, sized_step(found, step.axis, (here, there), size, carries_gradient)
    raise ValueError(f"{step.op} over {step.axis} with dims {step.dims} does not start from {here}")


def landing(rank: int, step: Collective, here: State) -> tuple[State, ...]:
    """The states in which a step's arguments allow it to end."""
    if here.kind == "S":
        if not step.dims or step.dims[0] != here.dim:
            return ()
        return (S(step.dims[1]),) if len(step.dims) == 2 and step.dims[1] < rank else (R, I, P)
    return (S(step.dims[0]),) if len(step.dims) == 1 and step.dims[0] < rank else (R, I, P)
