"""What each rank of a mesh holds of a tensor in a given layout, and the tensor again from what the ranks hold.

Parts are lists with an array for each rank, ranks row-major over the mesh's device axes (``Mesh.coordinate``). Layouts
are on the device axes: of the microbatches there is but one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autoplan.ir.layout import PMAX, I, Layout, State
from autoplan.ir.mesh import Mesh

Parts = list[np.ndarray]
Key = tuple[int, ...]


def deal(whole: np.ndarray, layout: Layout, mesh: Mesh, seed: int = 0) -> Parts:
    """Each rank's part of a tensor: a slice, cut as torch.chunk cuts, axis by axis from the outermost.

    On axes of P the ranks hold summands, whole numbers from ``seed`` that add up to the tensor (exactly, where it holds
    whole numbers); of P(max), the tensor's element on one rank and lesser ones on the others.
    """
    operands = _operands(whole, layout, mesh, np.random.default_rng(seed))
    axes = partial_axes(layout)
    found = []
    for rank in range(mesh.devices):
        operand = operands[tuple(mesh.coordinate(rank, axis) for axis in axes)]
        found.append(operand[tuple(slice(*ends) for ends in box(whole.shape, layout, mesh, rank))])
    return found


def whole_of(parts: Sequence[np.ndarray], layout: Layout, mesh: Mesh, shape: Sequence[int]) -> np.ndarray:
    """The tensor that these parts are; ValueError where one has another shape, or where replicas differ.

    Operands on axes of P are added up, of P(max) compared.
    """
    axes = partial_axes(layout)
    operands: dict[Key, np.ndarray] = {}
    written: dict[tuple[Key, tuple[tuple[int, int], ...]], int] = {}
    for rank, part in enumerate(parts):
        key, ends = tuple(mesh.coordinate(rank, axis) for axis in axes), box(shape, layout, mesh, rank)
        if part.shape != tuple(stop - start for start, stop in ends):
            raise ValueError(f"rank {rank} holds {part.shape} of {tuple(shape)}, in {layout} it is {ends}")
        first = written.setdefault((key, ends), rank)
        if not np.array_equal(part, parts[first]):
            raise ValueError(f"ranks {first} and {rank} hold different values where {layout} says the same")
        target = operands.setdefault(key, np.full(tuple(shape), np.nan))
        target[tuple(slice(*pair) for pair in ends)] = part
    return _folded(operands, layout, mesh)


def dual(layout: Layout) -> Layout:
    """The layout of the gradient: S and I stay, R and P change places."""
    return Layout(layout.dims, tuple((axis, state.gradient) for axis, state in layout.rest))


def pairing(values: Sequence[np.ndarray], gradients: Sequence[np.ndarray], layout: Layout, mesh: Mesh) -> float:
    """<value, gradient>: the ranks' dot products added up, an axis of I counted once.

    layout  of the values; that of the gradients is its dual
    """
    copies = math.prod(mesh.size(axis) for axis, state in layout.rest if state == I)
    return math.fsum(float(np.vdot(v, g)) for v, g in zip(values, gradients, strict=True)) / copies


def box(shape: Sequence[int], layout: Layout, mesh: Mesh, rank: int) -> tuple[tuple[int, int], ...]:
    """(start, stop) of a rank's part along each dim."""
    found = []
    for length, axes in zip(shape, layout.dims, strict=True):
        start, stop = 0, length
        for axis in axes:
            part = -(-(stop - start) // mesh.size(axis))
            start = min(start + mesh.coordinate(rank, axis) * part, stop)
            stop = min(start + part, stop)
        found.append((start, stop))
    return tuple(found)


def partial_axes(layout: Layout) -> tuple[str, ...]:
    """The axes of P, in the layout's order; ValueError where some reduce to a maximum and others don't."""
    partial = {axis: state for axis, state in layout.rest if state.kind == "P"}
    if PMAX in partial.values() and len(set(partial.values())) > 1:
        raise ValueError(f"{layout}: a maximum of sums is no sum of maxima, so the order of reduction would count")
    return tuple(partial)


def _operands(whole: np.ndarray, layout: Layout, mesh: Mesh, random: np.random.Generator) -> dict[Key, np.ndarray]:
    """The operand on each coordinate of the axes of P."""
    found: dict[Key, np.ndarray] = {(): whole}
    states = dict(layout.rest)
    for axis in partial_axes(layout):
        ways = mesh.size(axis)
        found = {
            (*key, at): operand
            for key, x in found.items()
            for at, operand in enumerate(_parted(x, states[axis], ways, random))
        }
    return found


def _parted(whole: np.ndarray, state: State, ways: int, random: np.random.Generator) -> list[np.ndarray]:
    """Operands on one axis."""
    noise = random.integers(1, 64, (ways, *whole.shape)).astype(whole.dtype)
    if state == PMAX:
        best = random.integers(0, ways, whole.shape)
        return [np.where(best == at, whole, whole - noise[at]) for at in range(ways)]
    return [*noise[1:], whole - noise[1:].sum(axis=0)]


def _folded(operands: Mapping[Key, np.ndarray], layout: Layout, mesh: Mesh) -> np.ndarray:
    """The operands reduced, axis by axis from the last of the axes of P."""
    states = dict(layout.rest)
    for axis in reversed(partial_axes(layout)):
        rows: dict[Key, list[np.ndarray]] = {}
        for key in sorted(operands):
            rows.setdefault(key[:-1], []).append(operands[key])
        reduce = np.maximum.reduce if states[axis] == PMAX else np.add.reduce
        operands = {key: reduce(row) for key, row in rows.items()}
    return operands[()]
