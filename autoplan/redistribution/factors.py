"""Layouts in terms of prime factors of their axes, and back; layouts without what makes no difference.

An axis of size 4 is two axes of size 2, one inside the other, and each can be moved on its own. Only where sizes divide
is the one the same as the other two: elsewhere axes stay whole.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from autoplan.errors import LayoutError
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Axis, Mesh
from autoplan.redistribution.steps import neutral


def sized(mesh: Mesh) -> tuple[Axis, ...]:
    """The axes that can hold different parts: those of size above 1."""
    return tuple(axis for axis in mesh.axes if axis.size > 1)


def check_layout(layout: Layout, shape: Sequence[int], mesh: Mesh) -> None:
    """LayoutError where this is no layout of a tensor of this shape on this mesh: each axis of size above 1 is named
    once, by itself or by all of its prime factors, and nothing else is."""
    names = [*(name for axes in layout.dims for name in axes), *(name for name, _ in layout.rest)]
    unknown = [name for name in names if not _factors(name, mesh)]
    named = Counter(factor for name in names for factor in _factors(name, mesh))
    twice = [factor for factor, times in named.items() if times > 1]
    missing = [factor for axis in sized(mesh) for factor in mesh.factors(axis.name) if not named[factor]]
    value = f"{layout.dims} and beside them {', '.join(f'{a}: {s}' for a, s in layout.rest) or 'nothing'}"
    if layout.rank != len(shape):
        raise LayoutError(value, f"this has {layout.rank} dims, the tensor is of shape {tuple(shape)}", "name its dims")
    if unknown:
        raise LayoutError(value, f"mesh {mesh} has no axis {', '.join(unknown)}", f"use {', '.join(mesh.names)}")
    if twice:
        raise LayoutError(value, f"this names {', '.join(twice)} twice", "name each axis once, in a dim or beside them")
    if missing:
        raise LayoutError(value, f"this says nothing of {', '.join(missing)}", f"name all axes of mesh {mesh}")


def _factors(name: str, mesh: Mesh) -> tuple[str, ...]:
    """Of an axis its prime factors; of a factor itself; none of a name that the mesh lacks."""
    if name in mesh:
        return mesh.factors(name)
    axis = whole(name)
    return (name,) if axis in mesh and name in mesh.factors(axis) else ()


def simplify(layout: Layout, mesh: Mesh, carries_gradient: bool, shape: Sequence[int] | None = None) -> Layout:
    """The layout on the axes of size above 1, with R for I where no gradient is carried; factors that stand together
    in order, or in one state, as their axis.

    shape  of the tensor, where its sizes may not divide
    """
    names = {axis.name for axis in sized(mesh)}
    lengths = [None] * layout.rank if shape is None else shape
    dims = tuple(
        joined([a for a in axes if whole(a) in names], mesh, length)
        for axes, length in zip(layout.dims, lengths, strict=True)
    )
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


def expand(layout: Layout, mesh: Mesh, only: Container[str] | None = None) -> Layout:
    """Every axis, or only these, by its prime factors; the same layout where sizes divide."""
    dims = tuple(split(axes, mesh, only) for axes in layout.dims)
    return Layout(dims, tuple((factor, state) for axis, state in layout.rest for factor in split([axis], mesh, only)))


def split(axes: Sequence[str], mesh: Mesh, only: Container[str] | None = None) -> tuple[str, ...]:
    """Every axis, or only these, by its prime factors, outermost first."""
    stays = [axis for axis in axes if "." in axis or (only is not None and axis not in only)]
    return tuple(factor for axis in axes for factor in ((axis,) if axis in stays else mesh.factors(axis)))


def joined(axes: Sequence[str], mesh: Mesh, size: int | None = None) -> tuple[str, ...]:
    """All factors of an axis that stand together, in order, as the axis.

    size  of the dim that these axes split: from the first that doesn't divide it on, nothing is joined; None: all do
    """
    if all(len(mesh.factors(whole(axis))) == 1 for axis in axes):
        return tuple(axes)
    found: list[str] = []
    left, size = list(axes), 0 if size is None else size
    while left:
        factors = mesh.factors(whole(left[0]))
        together = len(factors) > 1 and tuple(left[: len(factors)]) == factors
        taken = factors if together and size % mesh.size(whole(left[0])) == 0 else (left[0],)
        found.append(whole(left[0]) if len(taken) > 1 else left[0])
        ways = math.prod(mesh.size(axis) for axis in taken)
        size = size // ways if size % ways == 0 else 1  # 1: what follows splits parts of different sizes
        left = left[len(taken) :]
    return tuple(found)


def factored_axes(names: Iterable[str]) -> frozenset[str]:
    """The axes of which some are prime factors."""
    return frozenset(whole(name) for name in names if "." in name)


def split_evenly(layout: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether every dim divides by the axes that split it."""
    for size, axes in zip(shape, layout.dims, strict=True):
        for axis in axes:
            if size % mesh.size(axis):
                return False
            size //= mesh.size(axis)
    return True
