"""Pairs of shapes of as many elements, and the layouts on which reshapes are tried, for their tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from tests.support.layouts import ordered_layouts

SHAPES = [
    ((4, 6), (24,)),
    ((4, 6), (6, 4)),
    ((12,), (3, 4)),
    ((12,), (4, 3)),
    ((6,), (2, 3)),
    ((8, 3), (2, 4, 3)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((5, 4), (5, 2, 2)),
    ((4, 5), (2, 2, 5)),
    ((1, 6, 1), (1, 2, 3)),
    ((2, 3), (3, 2)),
    ((2, 10, 3), (4, 5, 3)),
    ((0, 4), (0, 2, 2)),
    ((3, 0), (0,)),
    ((4,), (4,)),
]


def every_layout(rank: int, mesh: Mesh) -> tuple[Layout, ...]:
    """All ordered ones, R beside the dims; axes whole, and by their factors."""
    return tuple(dict.fromkeys(x for factors in (False, True) for x in ordered_layouts(rank, mesh, factors=factors)))


def plain_layouts(shape: Sequence[int], mesh: Mesh) -> Iterator[Layout]:
    """Those that name factors of an axis only where sizes divide: elsewhere they aren't axes of their own."""
    for layout in every_layout(len(shape), mesh):
        if even(layout, shape, mesh) or not any("." in axis for axis in layout.axes):
            yield layout


def even(layout: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    ways = [math.prod(mesh.size(axis) for axis in axes) for axes in layout.dims]
    return 0 not in shape and all(size % count == 0 for size, count in zip(shape, ways, strict=True))
