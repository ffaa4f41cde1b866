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

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout, State
from autoplan.ir.mesh import Mesh

Step = Callable[[str, State, State], bool]
"""Whether a value may go from one state to another on an axis."""

Located = tuple[Layout, Mapping[str, State]]  # a layout with its states

PriceOf = Callable[[TensorType, Layout, Layout, bool], float | None]


@dataclass(frozen=True)
class LayoutPaths:
    """Where values of one type may go, on any mesh on which the same divides.

    carries  whether a gradient comes back
    layouts  in which the value may be
    splits   of each layout the searched axes that split it
    arcs     [n, 2] as indices of layouts, from and to, in ascending order
    of       [n] the number of each arc among ``firsts``
    firsts   one arc of each kind, as the two layouts with their states; those of a kind cost the same
    """

    kind: TensorType
    carries: bool
    layouts: tuple[Layout, ...]
    splits: tuple[tuple[str, ...], ...]
    arcs: np.ndarray
    of: np.ndarray
    firsts: tuple[tuple[Located, Located], ...]


@dataclass
class ArcPrices:
    """Prices arcs on one mesh; those that differ in nothing that is priced are priced once.

    axes   those that are searched
    price  seconds of a redistribution; None where there is no way
    """

    mesh: Mesh
    axes: tuple[str, ...]
    price: PriceOf
    known: dict[tuple, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = {axis.name: axis.size for axis in self.mesh.axes}

    def arcs_s(self, ways: LayoutPaths) -> np.ndarray:
        """[arcs] seconds, infinite where there is no way."""
        found = [self.arc_s(ways.kind, here, there, ways.carries) for here, there in ways.firsts]
        return np.array([np.inf if one is None else one for one in found], dtype=float)[ways.of]

    def arc_s(self, kind: TensorType, here: Located, there: Located, carries: bool) -> float | None:
        if len(self.axes) == 1:
            return self.price(kind, here[0], there[0], carries)
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


def ways_of(
    kind: TensorType,
    given: Sequence[Layout],
    taken: Iterable[Layout],
    carries: bool,
    step: Step | None,
    axes: Sequence[str],
    mesh: Mesh,
) -> LayoutPaths:
    """All arcs on which a value may go from the layouts in which it is given to those in which it is taken.

    step  which changes there are; None: all
    axes  those that are searched
    """
    wanted = list(dict.fromkeys(taken))
    ends = list(dict.fromkeys((*given, *wanted)))
    layouts = mixtures(kind, ends, axes, mesh) if step is None else tuple(ends)
    splits = tuple(tuple(a for dim in layout.dims for a in dim if a in axes) for layout in layouts)
    moving = [a for a in axes if len({layout.state(a) for layout in layouts}) > 1]
    if not moving:
        return LayoutPaths(kind, carries, layouts, splits, np.zeros((0, 2), dtype=int), np.zeros(0, dtype=int), ())
    states = list(dict.fromkeys(layout.state(a) for layout in layouts for a in moving))
    number = {state: n for n, state in enumerate(states)}
    codes = np.array([[number[layout.state(a)] for a in moving] for layout in layouts], dtype=int)
    possible = together(codes)
    for column, axis in enumerate(moving):
        goals = {layout.state(axis) for layout in wanted}
        goes = [[step is None or step(axis, here, there) for there in states] for here in states]
        table = np.eye(len(states), dtype=bool) | (np.array(goes) & [there in goals for there in states])
        possible &= table[codes[:, None, column], codes[None, :, column]]
    arcs = np.argwhere(possible)
    first, of = alike(codes, np.array([ways(split, mesh) for split in splits], dtype=int), arcs)
    located = {n: (layouts[n], layouts[n].states()) for n in set(arcs[first].ravel().tolist())}
    firsts = tuple((located[a], located[b]) for a, b in arcs[first].tolist())
    return LayoutPaths(kind, carries, layouts, splits, arcs, of, firsts)


def alike(codes: np.ndarray, parts: np.ndarray, arcs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One arc of each kind, and the kind of each arc.

    Alike are those that change the same axes in the same way, where the others leave as much, and touch the same
    dims in the same way.

    codes  [layouts, axes] the number of each layout's state on each axis
    parts  [layouts] into how many parts the axes split the value
    """
    before, after = codes[arcs[:, 0]], codes[arcs[:, 1]]
    changed = before != after
    here, there = np.where(changed, before, 0).max(axis=1), np.where(changed, after, 0).max(axis=1)
    beside = np.where(changed | ((before != here[:, None]) & (before != there[:, None])), -1, before)
    key = np.column_stack([here, there, changed, parts[arcs], beside])
    _, first, of = np.unique(key, axis=0, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def mixtures(kind: TensorType, ends: list[Layout], axes: Sequence[str], mesh: Mesh) -> tuple[Layout, ...]:
    """The ends, and where several axes move every mixture of their states on the single axes that divides."""
    moving = [a for a in axes if len({layout.state(a) for layout in ends}) > 1]
    if len(moving) < 2:
        return tuple(ends)
    states = [list(dict.fromkeys(layout.state(a) for layout in ends)) for a in moving]
    rest = {a: state for a, state in ends[0].states().items() if a not in moving}
    mixed = (
        Layout.of(ends[0].rank, rest | dict(zip(moving, each, strict=True)), mesh)
        for each in itertools.product(*states)
    )
    return tuple(dict.fromkeys((*ends, *(layout for layout in mixed if divides(kind, layout, mesh)))))


def together(codes: np.ndarray) -> np.ndarray:
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


def states_on(axes: Iterable[str], states: Mapping[str, Sequence[State]]) -> list[dict[str, State]]:
    """Every mixture of these states of the single axes."""
    names = tuple(axes)
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*(states[a] for a in names))]
