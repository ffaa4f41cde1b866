"""The layouts that one value may pass through, and the arcs between them with their prices.

An arc changes one axis, or several that are in one state into another one alike (a reduction over two axes is one
collective). Where several axes are searched, a value may stop on the way in any mixture of the states that its
producer and its consumers know on the single axes, so that a way over two changes is two arcs, which share their
first with whoever else goes there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoplan.graph import TensorType
from autoplan.layout import Layout, State
from autoplan.mesh import Mesh

Step = Callable[[str, State, State], bool]
"""Whether a value may go from one state to another on an axis."""

Located = tuple[Layout, Mapping[str, State]]  # a layout with its states

PriceOf = Callable[[TensorType, Layout, Layout, bool], float | None]


@dataclass(frozen=True)
class Flow:
    """Layouts of one value; arcs [n, 2] as indices of theirs, from and to, in ascending order; their seconds [n]."""

    layouts: tuple[Layout, ...]
    arcs: np.ndarray
    arc_s: np.ndarray


@dataclass
class Flows:
    """Finds the flows of the values on one mesh. Arcs that differ in nothing that is priced are priced once.

    axes   those that are searched
    price  seconds of a redistribution; None where there is no way
    """

    mesh: Mesh
    axes: tuple[str, ...]
    price: PriceOf
    known: dict[tuple, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = {axis.name: axis.size for axis in self.mesh.axes}

    def flow(
        self, kind: TensorType, given: Sequence[Layout], taken: Iterable[Layout], carries: bool, step: Step | None
    ) -> Flow:
        """The way from every layout in which a value is given to those in which it is taken.

        step  which changes there are; None: all
        """
        wanted = list(dict.fromkeys(taken))
        ends = list(dict.fromkeys((*given, *wanted)))
        layouts = self.between(kind, ends) if step is None else tuple(ends)
        moving = [a for a in self.axes if len({layout.state(a) for layout in layouts}) > 1]
        if not moving:
            return Flow(layouts, np.zeros((0, 2), dtype=int), np.zeros(0))
        states = list(dict.fromkeys(layout.state(a) for layout in layouts for a in moving))
        number = {state: n for n, state in enumerate(states)}
        codes = np.array([[number[layout.state(a)] for a in moving] for layout in layouts], dtype=int)
        possible = self.together(codes)
        for column, axis in enumerate(moving):
            goals = {layout.state(axis) for layout in wanted}
            goes = [[step is None or step(axis, here, there) for there in states] for here in states]
            table = np.eye(len(states), dtype=bool) | (np.array(goes) & [there in goals for there in states])
            possible &= table[codes[:, None, column], codes[None, :, column]]
        pairs = np.argwhere(possible)
        price_s = self.prices_of(kind, layouts, codes, pairs, carries)
        priced = np.isfinite(price_s)
        return Flow(layouts, pairs[priced], price_s[priced])

    def prices_of(
        self, kind: TensorType, layouts: Sequence[Layout], codes: np.ndarray, pairs: np.ndarray, carries: bool
    ) -> np.ndarray:
        """Seconds of each of these arcs, infinite where there is no way; of arcs that are alike, one is priced.

        Alike are those that change the same axes in the same way, where the others leave as much, and touch the same
        dims in the same way.
        """
        before, after = codes[pairs[:, 0]], codes[pairs[:, 1]]
        changed = before != after
        held = np.array([local_elements(kind, layout, self.mesh) for layout in layouts], dtype=int)
        here, there = np.where(changed, before, 0).max(axis=1), np.where(changed, after, 0).max(axis=1)
        beside = np.where(changed | ((before != here[:, None]) & (before != there[:, None])), -1, before)
        key = np.column_stack([here, there, changed, held[pairs], beside])
        _, first, of = np.unique(key, axis=0, return_index=True, return_inverse=True)
        located = {n: (layouts[n], layouts[n].states()) for n in set(pairs[first].ravel().tolist())}
        found = [self.arc_s(kind, located[a], located[b], carries) for a, b in pairs[first].tolist()]
        seconds = np.array([np.inf if one is None else one for one in found], dtype=float)
        return seconds[of.reshape(-1)]

    def between(self, kind: TensorType, ends: list[Layout]) -> tuple[Layout, ...]:
        """The ends, and where several axes move every mixture of their states on the single axes that divides."""
        moving = [a for a in self.axes if len({layout.state(a) for layout in ends}) > 1]
        if len(moving) < 2:
            return tuple(ends)
        states = [list(dict.fromkeys(layout.state(a) for layout in ends)) for a in moving]
        rest = {a: state for a, state in ends[0].states().items() if a not in moving}
        mixed = (
            Layout.of(ends[0].rank, rest | dict(zip(moving, each, strict=True)), self.mesh)
            for each in itertools.product(*states)
        )
        return tuple(dict.fromkeys((*ends, *(layout for layout in mixed if divides(kind, layout, self.mesh)))))

    def together(self, codes: np.ndarray) -> np.ndarray:
        """[layouts, layouts]: whether one axis changes, or several that change alike.

        codes  [layouts, axes] the number of each layout's state on each axis
        """
        before, after = np.broadcast_arrays(codes[:, None, :], codes[None, :, :])
        changed = before != after
        alike = changed.any(axis=-1)
        for side in (before, after):
            most = np.where(changed, side, -1).max(axis=-1)
            alike &= most == np.where(changed, side, codes.max() + 1).min(axis=-1)
        return alike

    def arc_s(self, kind: TensorType, here: Located, there: Located, carries: bool) -> float | None:
        key = (kind.dtype, carries, *self.likeness(kind, here[1], there[1]))
        if key not in self.known:
            self.known[key] = self.price(kind, here[0], there[0], carries)
        return self.known[key]

    def likeness(self, kind: TensorType, before: Mapping[str, State], after: Mapping[str, State]) -> tuple:
        """All that the price of an arc depends on: what changes on which axis, the part that is there on the others,
        and the states of those whose members can help, or that split a dim that the arc touches."""
        changed = tuple((a, before[a], after[a]) for a in before if before[a] != after[a])
        touched = {state.dim for _, *ends in changed for state in ends if state.kind == "S"}
        shape, beside = list(kind.shape), []
        for axis, state in before.items():
            if after[axis] != state:
                continue
            if state.kind == "S" and state.dim not in touched:
                shape[state.dim] //= self.sizes[axis]
            elif self.sizes[axis] > 1:
                beside.append((axis, state))
        return changed, tuple(shape), tuple(beside)


def divides(kind: TensorType, layout: Layout, mesh: Mesh) -> bool:
    """Whether every dim's size is a multiple of the axes that split it."""
    return all(
        size % ways(layout.dims[dim], mesh) == 0 for dim, size in enumerate(kind.shape) if layout.dims[dim]
    )


def ways(axes: Iterable[str], mesh: Mesh) -> int:
    product = 1
    for axis in axes:
        product *= mesh.size(axis)
    return product


def local_elements(kind: TensorType, layout: Layout, mesh: Mesh) -> int:
    """Elements of one rank's part."""
    return kind.elements // ways((axis for axes in layout.dims for axis in axes), mesh)


def local_bytes(kind: TensorType, layout: Layout, mesh: Mesh) -> int:
    return local_elements(kind, layout, mesh) * (kind.bytes // max(kind.elements, 1))


def states_on(axes: Iterable[str], states: Mapping[str, Sequence[State]]) -> list[dict[str, State]]:
    """Every mixture of these states of the single axes."""
    names = tuple(axes)
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*(states[a] for a in names))]
