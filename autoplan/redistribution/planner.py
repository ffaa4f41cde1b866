"""Redistributions of one kind of tensor: the space in which each is sought, and the path that ``shortest_path`` finds
there, as written steps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.errors import LayoutError
from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import I, Layout, R, State
from autoplan.ir.mesh import Axis, Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.apply import Tensor, changed, held_elements, write
from autoplan.redistribution.factors import check_layout, expand, factored_axes, simplify, sized, split_evenly
from autoplan.redistribution.links import UNIFORM, Links
from autoplan.redistribution.shortest_path import shortest
from autoplan.redistribution.space.layout_graph import Space
from autoplan.redistribution.space.layouts import MOST_LAYOUTS, Beside, count_layouts
from autoplan.redistribution.space.single_axis import SingleAxis
from autoplan.redistribution.steps import find_step


@dataclass(frozen=True)
class Redistribution:
    """A sequence of steps, and its price forward and backward together."""

    collectives: tuple[Collective, ...]
    seconds: float


@dataclass(frozen=True)
class _Known:
    """What is known of one end.

    layout  simplified
    named   the axes of which it names prime factors
    even    whether every dim divides by the axes that split it
    """

    layout: Layout
    named: frozenset[str]
    even: bool


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
        self.composite = any(len(mesh.factors(name)) > 1 for name in mesh.names)
        self.virtual = tuple(axis.name for axis in sized(mesh) if axis.virtual)
        names = [name for axis in mesh.names for name in dict.fromkeys((axis, *mesh.factors(axis)))]
        self.order = {name: number for number, name in enumerate(names)}
        self.sizes = {name: mesh.size(name) for name in names}
        self.rates = {n: math.inf if mesh.axis(n).virtual else links.bandwidth_bytes_per_s(mesh.axis(n)) for n in names}
        self._spaces: dict[tuple[object, ...], Space] = {}
        self._layouts: dict[Layout, _Known] = {}
        self._paths: dict[tuple[str, int, State, State], tuple[tuple[State, ...], float] | None] = {}
        self._seconds: dict[tuple[str, int, str], float] = {}

    def plan(self, source: Layout, target: Layout) -> Redistribution:
        """The fastest; no steps where both are the same.

        LayoutError where a layout doesn't fit the tensor and the mesh, and where there is no way: the axis of the
        microbatches would change, or a P(max) that carries a gradient.
        """
        known = self._known(source), self._known(target)
        start, goal = known[0].layout, known[1].layout
        if start == goal:
            return Redistribution((), 0.0)
        if any(start.state(name) != goal.state(name) for name in self.virtual):
            cause = "microbatches follow one another, so nothing can be exchanged between them"
            raise LayoutError(f"{source} -> {target}", cause, "give the value one state on axis mb")
        if any({"max"} < {state.reduce for state in rests(layout)} - {""} for layout in (start, goal)):
            cause = "a maximum of sums is not a sum of maxima, so summands and operands of max don't go together"
            raise LayoutError(f"{source} -> {target}", cause, "reduce the one before the other is made")
        named = known[0].named | known[1].named
        for end in (start, goal) if named else ():
            if (rest := self._unnameable(end, named, I if I in (*rests(start), *rests(goal)) else R)) is not None:
                return joined([self.plan(*each) for each in ((start, rest), (rest, goal))])
        even = known[0].even and known[1].even
        if even and not named and len(names := self.moving(start, goal)) == 1:
            return self._along(names[0], start, goal)
        ends = self._ends(start, goal, named, even)
        path = shortest(ends.space, ends.source, ends.target)
        if path is None:
            raise self._no_way(source, target)
        space = ends.space
        steps = tuple(space.collective(hop.source, hop.target, hop.exchange, self.mesh) for hop in path)
        kinds = [(int(hop.exchange), hop.source, hop.target) for hop in path]
        return Redistribution(steps, float(sum(space.seconds[k] for k in kinds)))

    def _along(self, name: str, start: Layout, goal: Layout) -> Redistribution:
        """The fastest over one axis that divides what it splits."""
        here, there, axis = start.state(name), goal.state(name), self.mesh.axis(name)
        whole = held_elements(start, self.type.shape, self.mesh) * (axis.size if here.kind == "S" else 1)
        along = SingleAxis(axis.size, whole * self.itemsize, self.carries)
        key = (name, along.whole_bytes, here, there)
        if key not in self._paths:
            beside = self._beside(start, goal, (name,))[name]
            self._paths[key] = along.path(here, there, beside, lambda kind, size: self._price(kind, size, axis))
        found = self._paths[key]
        if found is None:
            raise self._no_way(start, goal)
        steps = []
        for state in found[0]:
            step = find_step(here, state, self.carries)
            assert step is not None
            dims = tuple(s.dim for s in (here, state) if s.kind == "S")
            held = (along.held_bytes(here), along.held_bytes(state))
            steps.append(write(step, (name,), dims, held, self.carries))
            here = state
        return Redistribution(tuple(steps), found[1])

    def _price(self, kind: str, size: int, axis: Axis) -> float:
        if (kind, size, axis.name) not in self._seconds:
            self._seconds[kind, size, axis.name] = self.links.collective_s(kind, size, (axis,))
        return self._seconds[kind, size, axis.name]

    def _no_way(self, source: Layout, target: Layout) -> LayoutError:
        cause = f"no sequence of steps leads there for a tensor of shape {self.type.shape} on mesh {self.mesh}"
        return LayoutError(f"{source} -> {target}", cause, "reduce a P(max) before a gradient passes through it")

    def _unnameable(self, end: Layout, named: frozenset[str], state: State) -> Layout | None:
        """One end with those axes gathered that it splits a dim by unevenly, and of which prime factors are named:
        parts of ceil(n/4) are no parts of parts of ceil(n/2). None where there are no such axes."""
        found = end
        for size, axes in zip(self.type.shape, end.dims, strict=True):
            ways = 1
            for axis in axes:
                ways *= self.sizes[axis]
                if axis in named and size % ways:
                    found = changed(found, (axis,), state, self.mesh)
        return None if found == end else found

    def _known(self, layout: Layout) -> _Known:
        if layout not in self._layouts:
            check_layout(layout, self.type.shape, self.mesh)
            simple = simplify(layout, self.mesh, self.carries, self.type.shape)
            even = split_evenly(simple, self.type.shape, self.mesh)
            self._layouts[layout] = _Known(simple, factored_axes(simple.axes), even)
        return self._layouts[layout]

    def _ends(self, start: Layout, goal: Layout, named: frozenset[str], even: bool) -> _Ends:
        """Both layouts on the axes that may have to move; over one axis that divides no exchange beats a step."""
        ends = (expand(start, self.mesh, named), expand(goal, self.mesh, named)) if named else (start, goal)
        names = self.moving(*ends)
        beside = self._beside(*ends, names)
        if self.composite and even and not named and len(names) > 1:
            ends, names, beside = self._factored(ends, names, beside)
        shape, ends = fixed_out(ends, names, self.type.shape, self.sizes)
        key = (names, shape, tuple(beside.items()), even)
        if key not in self._spaces or self._spaces[key].made_for_its_ends():
            tensor = Tensor(shape, self.itemsize, self.carries)
            axes = [self.mesh.axis(name) for name in names]
            self._spaces[key] = Space(tensor, axes, beside, self.links, ends, direct=len(names) > 1 or not even)
        return _Ends(*ends, self._spaces[key])

    def _factored(
        self, ends: tuple[Layout, Layout], names: tuple[str, ...], beside: Beside
    ) -> tuple[tuple[Layout, Layout], tuple[str, ...], Beside]:
        """Ends, moving axes and their states in prime factors, unless the layouts to search become too many."""
        split = expand(ends[0], self.mesh), expand(ends[1], self.mesh)
        factors = self.moving(*split)
        states = self._beside(*split, factors)
        few = count_layouts(ends[0].rank, [len(each) for each in states.values()]) <= MOST_LAYOUTS
        return (split, factors, states) if few else (ends, names, beside)

    def moving(self, start: Layout, goal: Layout) -> tuple[str, ...]:
        """Axes that may have to move, in the mesh's order.

        Those in two states, those that split a dim inside such a one or unevenly, and those that replicate at both
        ends over faster links: they can share what comes over slower ones.
        """
        found: set[str] = set()
        for size, here, there in zip(self.type.shape, start.dims, goal.dims, strict=True):
            if here == there and not here:
                continue
            outer = 0
            for axis, other in zip(here, there, strict=False):
                if axis != other or size % self.sizes[axis]:
                    break
                size //= self.sizes[axis]
                outer += 1
            found.update(here[outer:], there[outer:])
        states, rest = dict(start.rest), dict(goal.rest)
        found |= {axis for axis, state in states.items() if rest.get(axis) != state}
        slowest = min((self.rates[axis] for axis in found), default=0.0)
        kept = {axis for axis, state in states.items() if rest.get(axis) == state and state in (R, I)}
        found |= {axis for axis in kept if self.rates[axis] > slowest}
        return tuple(sorted(found.difference(self.virtual), key=self.order.__getitem__))

    def _beside(self, start: Layout, goal: Layout, names: Iterable[str]) -> Beside:
        """The states that each moving axis may take beside the dims: R, I where either end has an I, and its own."""
        names = tuple(names)
        rests = [dict(layout.rest) for layout in (start, goal)]
        invariant = any(rest.get(name) == I for rest in rests for name in names)
        found = {}
        for name in names:
            own = [rest[name] for rest in rests if name in rest and rest[name].kind == "P"]
            found[name] = tuple(dict.fromkeys((R, *([I] if invariant else []), *own)))
        return found


def rests(layout: Layout) -> tuple[State, ...]:
    """The states beside the dims."""
    return tuple(state for _, state in layout.rest)


def joined(redistributions: Sequence[Redistribution]) -> Redistribution:
    """Several redistributions, one after another."""
    steps = tuple(step for each in redistributions for step in each.collectives)
    return Redistribution(steps, sum(each.seconds for each in redistributions))


def fixed_out(
    ends: tuple[Layout, Layout], names: tuple[str, ...], shape: tuple[int, ...], sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[Layout, Layout]]:
    """The shape of the part that the moving axes split, and the layouts on these axes alone."""
    local = []
    for size, axes in zip(shape, ends[0].dims, strict=True):
        for axis in axes:
            size //= 1 if axis in names else sizes[axis]
        local.append(size)
    found = [
        Layout(
            tuple(tuple(a for a in axes if a in names) for axes in layout.dims),
            tuple((a, s) for a, s in layout.rest if a in names),
        )
        for layout in ends
    ]
    return tuple(local), (found[0], found[1])
