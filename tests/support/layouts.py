"""All layouts of a tensor on a mesh, counted out; meshes and shapes for the tests of redistribution."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product

import numpy as np

from autoplan.ir.layout import Layout, R, State
from autoplan.ir.mesh import Mesh

LINE = Mesh.of(x=8)
GRID = Mesh.of(x=4, y=2)
ODD = Mesh.of(x=2, y=3)
SQUARE = Mesh.of(x=2, y=2)
CUBE = Mesh.of(x=2, y=2, z=2)
MESHES = {"8": LINE, "4x2": GRID, "2x3": ODD, "2x2x2": CUBE}

Pair = tuple[Layout, Layout]


def ordered_layouts(rank: int, mesh: Mesh, rest: Sequence[State] = (R,), factors: bool = False) -> list[Layout]:
    """Every layout: each axis splits one dim, at any place among the dim's other axes, or is in one of these states.

    factors  with every axis taken by its prime factors

    With n axes and r dims there are, over k of n axes that split, n!/(n-k)! · C(k+r-1, r-1) · len(rest)^(n-k): 106 on
    2×2×2 at rank 3 with R alone.
    """
    axes = [name for axis in mesh.names for name in (mesh.factors(axis) if factors else (axis,))]
    found = []
    for count in range(len(axes) + 1 if rank else 1):
        for order in permutations(axes, count):
            left = [axis for axis in axes if axis not in order]
            for dims, states in product(cut(order, rank), product(rest, repeat=len(left))):
                found.append(Layout(dims, tuple(zip(left, states, strict=True))))
    return found


def cut(order: Sequence[str], pieces: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to cut a sequence into so many consecutive pieces, empty ones included."""
    if pieces == 0:
        yield ()
    elif pieces == 1:
        yield (tuple(order),)
    else:
        for length in range(len(order) + 1):
            for others in cut(order[length:], pieces - 1):
                yield (tuple(order[:length]), *others)


def mindspore_layouts(rank: int, mesh: Mesh) -> list[Layout]:
    """Those of MindSpore's tensor maps: every dim is split by one axis at most."""
    return [layout for layout in ordered_layouts(rank, mesh) if all(len(axes) <= 1 for axes in layout.dims)]


def pairs_of(layouts: Iterable[Layout], most: int = 0) -> list[Pair]:
    """All ordered pairs, or so many of them drawn with a fixed seed. Identities are among them."""
    pairs = list(product(layouts, repeat=2))
    return random.Random(0).sample(pairs, most) if 0 < most < len(pairs) else pairs


def numbered(shape: Sequence[int]) -> np.ndarray:
    """A tensor of distinct whole numbers."""
    return np.arange(1.0, 1 + np.prod(shape, dtype=np.int64)).reshape(tuple(shape))


def in_state(layout: Layout, axis: str, state: State, mesh: Mesh) -> Layout:
    """A layout with one axis in another state."""
    return Layout.of(layout.rank, {**layout.states(), axis: state}, mesh)
