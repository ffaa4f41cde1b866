"""Redistributions of one kind of tensor: the space in which each is sought, the path that ``search`` finds there as
written steps, and the frontier of seconds against memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.errors import LayoutError
from autoplan.graph import DTYPE_BYTES, TensorType
from autoplan.layout import I, Layout, R, State
from autoplan.mesh import Axis, Mesh
from autoplan.redistribute.apply import Tensor, held_elements
from autoplan.redistribute.factors import expand, simplify, sized, split_evenly, whole
from autoplan.redistribute.links import UNIFORM, Links
from autoplan.redistribute.search import shortest
from autoplan.redistribute.space import Space, count_layouts
from autoplan.typed import Collective

MOST_LAYOUTS = 400  # of a space whose axes are split into prime factors


@dataclass(frozen=True)
class Redistribution:
    """A sequence of steps, its price forward and backward together, and the most bytes on a rank while it runs:
    operand, result and communication buffers of one step."""

    collectives: tuple[Collective, ...]
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class _Ends:
    """Both ends of a redistribution, on the axes that may move."""

    source: Layout
    target: Layout
    space: Space


class Planner:
    """Redistributions of tensors of one type on one mesh; what it has worked out it keeps for its lifetime.

    type   of the whole tensor
    mesh   the axes; none crosses "mb"
    links  what collectives cost on them
    """

    def __init__(self, type: TensorType, mesh: Mesh, *, carries_gradient: bool, links: Links = UNIFORM):
        self.type, self.mesh, self.carries, self.links = type, mesh, carries_gradient, links
        self.itemsize = DTYPE_BYTES[type.dtype]
        self.virtual = any(axis.virtual for axis in mesh.axes)
        self._spaces: dict[tuple[object, ...], Space] = {}
        self._simple: dict[Layout, Layout] = {}
        self._ended: dict[tuple[Layout, Layout], _Ends] = {}

    def plan(self, source: Layout, target: Layout) -> Redistribution:
        """The fastest; no steps where both are the same.

        LayoutError where there is none: the microbatches' axis would change, or a P(max) that carries a gradient.
        """
        return self._found(source, target, math.inf)

    def frontier(self, source: Layout, target: Layout) -> tuple[Redistribution, ...]:
        """The fastest, and those that are slower but need less memory, each the fastest within its bytes."""
        found = [self.plan(source, target)]
        while found[-1].collectives:
            try:
                found.append(self._found(source, target, found[-1].peak_bytes))
            except LayoutError:
                break
        return tuple(found)

    def _found(self, source: Layout, target: Layout, below_bytes: float) -> Redistribution:
        start, goal = self._simplified(source), self._simplified(target)
        if start == goal:
            held = held_elements(start, self.type.shape, self.mesh) * self.itemsize
            return Redistribution((), 0.0, held)
        if self.virtual and any(axis.virtual and start.state(axis.name) != goal.state(axis.name) for axis in sized(self.mesh)):
            cause = "microbatches follow one another, so nothing can be exchanged between them"
            raise LayoutError(f"{source} -> {target}", cause, "give the value one state on axis mb")
        ends = self._ends(start, goal)
        path = shortest(ends.space, ends.source, ends.target, below_bytes)
        if path is None:
            cause = f"no sequence of steps leads there for a tensor of shape {self.type.shape} on mesh {self.mesh}"
            raise LayoutError(f"{source} -> {target}", cause, "reduce a P(max) before a gradient passes through it")
        here, steps = ends.space.number[ends.source], []
        for arc in path:
            steps.append(ends.space.collective(here, arc, self.mesh))
            here = arc.target
        peak = max(arc.peak_bytes for arc in path)
        return Redistribution(tuple(steps), sum(arc.seconds for arc in path), peak)

    def _simplified(self, layout: Layout) -> Layout:
        if layout not in self._simple:
            self._simple[layout] = simplify(layout, self.mesh, self.carries)
        return self._simple[layout]

    def _ends(self, start: Layout, goal: Layout) -> _Ends:
        """Both layouts on the axes that may have to move, in prime factors where that can help."""
        even = all(split_evenly(layout, self.type.shape, self.mesh) for layout in (start, goal))
        named = any("." in axis for layout in (start, goal) for axis in layout.axes)
        for factored in (True, False):
            if factored and not even:
                continue
            ends = [expand(layout, self.mesh) for layout in (start, goal)] if factored or named else [start, goal]
            names = moving(*ends, self.type.shape, self.mesh, self.links)
            axes = tuple(self.mesh.axis(name) for name in names)
            beside = self._beside(*ends, names)
            whole_axes = {whole(name) for name in names}
            few = len(whole_axes) > 1 or named or len(names) == 1
            if named or not factored or (few and fits(len(start.dims), beside)):
                break
        shape, ends = fixed_out(ends, names, self.type.shape, self.mesh)
        key = (axes, shape, tuple(beside.items()))
        if key not in self._spaces:
            self._spaces[key] = Space(Tensor(shape, self.itemsize, self.carries), axes, beside, self.links)
        return _Ends(*ends, self._spaces[key])

    def _beside(self, start: Layout, goal: Layout, names: Iterable[str]) -> dict[str, tuple[State, ...]]:
        """The states that each moving axis may take beside the dims: R, I where either end has an I, and its own."""
        names = tuple(names)
        rests = [dict(layout.rest) for layout in (start, goal)]
        invariant = any(rest.get(name) == I for rest in rests for name in names)
        found = {}
        for name in names:
            own = [rest[name] for rest in rests if name in rest and rest[name].kind == "P"]
            summed = [State("P", reduce="sum")] if any(s.reduce == "avg" for s in own) else []
            states = (R, *([I] if invariant else []), *own, *summed)
            found[name] = tuple(dict.fromkeys(states))
        return found


def fits(rank: int, beside: dict[str, tuple[State, ...]]) -> bool:
    return count_layouts(rank, [len(states) for states in beside.values()]) <= MOST_LAYOUTS


def moving(start: Layout, goal: Layout, shape: tuple[int, ...], mesh: Mesh, links: Links) -> tuple[str, ...]:
    """Axes that may have to move, in the mesh's order.

    Those in two states, those that split a dim inside such a one or unevenly, and those that replicate at both ends
    over faster links: they can share what comes over slower ones.
    """
    found: set[str] = set()
    for size, here, there in zip(shape, start.dims, goal.dims, strict=True):
        outer = 0
        while outer < min(len(here), len(there)) and here[outer] == there[outer] and not size % mesh.size(here[outer]):
            size //= mesh.size(here[outer])
            outer += 1
        found |= {*here[outer:], *there[outer:]}
    rests = [dict(layout.rest) for layout in (start, goal)]
    found |= {axis for axis, state in rests[0].items() if rests[1].get(axis) != state}
    rate = {axis: links.bandwidth_bytes_per_s(mesh.axis(axis)) for axis in (*found, *rests[0])}
    slowest = min((rate[axis] for axis in found), default=0.0)
    helping = {a for a, s in rests[0].items() if rests[1].get(a) == s and s in (R, I) and rate[a] > slowest}
    order = {factor: n for n, axis in enumerate(mesh.names) for factor in (axis, *mesh.factors(axis))}
    return tuple(sorted((a for a in found | helping if not mesh.axis(a).virtual), key=lambda a: (order[a], a)))


def fixed_out(
    ends: list[Layout], names: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh
) -> tuple[tuple[int, ...], list[Layout]]:
    """The shape of the part that the moving axes split, and the layouts on these axes alone."""
    local = []
    for size, axes in zip(shape, ends[0].dims, strict=True):
        for axis in axes:
            size //= 1 if axis in names else mesh.size(axis)
        local.append(size)
    found = [
        Layout(
            tuple(tuple(a for a in axes if a in names) for axes in layout.dims),
            tuple((a, s) for a, s in layout.rest if a in names),
        )
        for layout in ends
    ]
    return tuple(local), found
