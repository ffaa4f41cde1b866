"""Layouts in terms of prime factors of their axes, and back; layouts without what makes no difference.

An axis of size 4 is two axes of size 2, one inside the other, and each can be moved on its own. Only where sizes divide
is the one the same as the other two: elsewhere axes stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.layout import Layout, R
from autoplan.mesh import Axis, Mesh
from autoplan.redistribute.steps import neutral


def sized(mesh: Mesh) -> tuple[Axis, ...]:
    """The axes that can hold different parts: those of size above 1."""
    return tuple(axis for axis in mesh.axes if axis.size > 1)


def simplify(layout: Layout, mesh: Mesh, carries_gradient: bool) -> Layout:
    """The layout on the axes of size above 1, with R for I where no gradient is carried; factors that stand together
    in order, or in one state, as their axis."""
    names = {axis.name for axis in sized(mesh)}
    dims = tuple(joined([a for a in axes if whole(a) in names], mesh) for axes in layout.dims)
    rest = {a: neutral(s, carries_gradient) for a, s in layout.rest if whole(a) in names}
    for axis in sized(mesh):
        factors = mesh.factors(axis.name)
        states = {rest[factor] for factor in factors if factor in rest}
        if len(factors) > 1 and len(states) == 1 and all(factor in rest for factor in factors):
            rest = {a: s for a, s in rest.items() if a not in factors} | {axis.name: states.pop()}
    return Layout(dims, tuple(sorted(rest.items(), key=lambda pair: place(pair[0], mesh))))


def whole(name: str) -> str:
    """The mesh axis of which this is a factor, or the axis itself."""
    return name.partition(".")[0]


def place(name: str, mesh: Mesh) -> tuple[int, int]:
    """Where an axis or a factor stands in the mesh's order; a factor may itself be one of the mesh's axes."""
    if name in mesh.names:
        return mesh.names.index(name), 0
    axis, _, number = name.partition(".")
    return mesh.names.index(axis), int(number or 0)


def expand(layout: Layout, mesh: Mesh) -> Layout:
    """Every axis by its prime factors."""
    dims = tuple(split(axes, mesh) for axes in layout.dims)
    return Layout(dims, tuple((factor, state) for axis, state in layout.rest for factor in split([axis], mesh)))


def split(axes: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Every axis by its prime factors, outermost first."""
    return tuple(factor for axis in axes for factor in ((axis,) if "." in axis else mesh.factors(axis)))


def joined(axes: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """All factors of an axis that stand together, in order, as the axis."""
    found: list[str] = []
    left = list(axes)
    while left:
        factors = mesh.factors(whole(left[0]))
        if len(factors) > 1 and tuple(left[: len(factors)]) == factors:
            found.append(whole(left[0]))
            left = left[len(factors) :]
        else:
            found.append(left.pop(0))
    return tuple(found)


def split_evenly(layout: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether every dim divides by the axes that split it."""
    for size, axes in zip(shape, layout.dims, strict=True):
        for axis in axes:
            if size % mesh.size(axis):
                return False
            size //= mesh.size(axis)
    return True


def state_of(layout: Layout, axis: str) -> str:
    """The text of a state, for messages; "split up" where the layout names only factors of the axis."""
    try:
        return str(layout.state(axis))
    except KeyError:
        return "split up"


def everywhere(rank: int, axes: Sequence[str]) -> Layout:
    """R on all of these axes."""
    return Layout(((),) * rank, tuple((axis, R) for axis in axes))
