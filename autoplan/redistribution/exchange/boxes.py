"""Which part of a tensor each member of a group holds, as a box of indices.

A dim of length n split over axes x, y, … is cut axis by axis from the outermost: over an axis of k members into parts
of length ceil(n/k), the last ones shorter or empty, as ``torch.chunk`` cuts and DTensor after it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Dims = tuple[tuple[str, ...], ...]
"""For each tensor dim the axes that split it, outermost first."""

Boxes = np.ndarray
"""int64 (members, dims, 2): start and stop of each member's part along each dim; start == stop where it is empty."""


def coordinates(axes: Sequence[str], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Each member's coordinate along each axis of a group; members are numbered row-major over ``axes``."""
    shape = [sizes[axis] for axis in axes]
    grids = np.indices(shape).reshape(len(shape), -1) if shape else np.zeros((0, 1), np.int64)
    return dict(zip(axes, grids, strict=True))


def boxes(dims: Dims, shape: Sequence[int], axes: Sequence[str], sizes: Mapping[str, int]) -> Boxes:
    """Each member's box of a tensor of this shape.

    dims   the axes of the group that split each dim; an axis of the group in no dim replicates
    axes   the group's, outermost first
    sizes  of these axes
    """
    where = coordinates(axes, sizes)
    members = int(np.prod([sizes[axis] for axis in axes], dtype=np.int64))
    found = np.zeros((members, len(shape), 2), np.int64)
    for dim, (length, split) in enumerate(zip(shape, dims, strict=True)):
        start, stop = np.zeros(members, np.int64), np.full(members, length, np.int64)
        for axis in split:
            part = -((start - stop) // sizes[axis])  # ceil
            start = np.minimum(start + where[axis] * part, stop)
            stop = np.minimum(start + part, stop)
        found[:, dim, 0], found[:, dim, 1] = start, stop
    return found


def volumes(found: Boxes) -> np.ndarray:
    """Elements in each box; any leading dims."""
    return np.maximum(found[..., 1] - found[..., 0], 0).prod(axis=-1)


def intersections(left: Boxes, right: Boxes) -> Boxes:
    """(members, members, dims, 2): what each box on the left shares with each on the right."""
    start = np.maximum(left[:, None, :, 0], right[None, :, :, 0])
    stop = np.minimum(left[:, None, :, 1], right[None, :, :, 1])
    return np.stack([start, np.maximum(start, stop)], axis=-1)
