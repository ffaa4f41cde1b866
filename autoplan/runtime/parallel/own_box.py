"""Which box of a whole tensor one rank keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh


@dataclass(frozen=True)
class Part:
    """A box: its first index and its size along each dim."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True))

    def shifted(self, dim: int, by: int) -> Part:
        """The same box in a tensor that has ``by`` more elements in front along a dim."""
        return Part(tuple(a + by * (d == dim) for d, a in enumerate(self.start)), self.shape)


def whole(shape: tuple[int, ...]) -> Part:
    """All of a tensor."""
    return Part((0,) * len(shape), shape)


def part_of(shape: tuple[int, ...], layout: Layout, mesh: Mesh, coordinates: Mapping[str, int]) -> Part:
    """The box of the rank with these coordinates. An axis that ``coordinates`` doesn't name is left whole."""
    starts, sizes = [], []
    for size, axes in zip(shape, layout.dims, strict=True):
        start = 0
        for axis in (a for a in axes if a in coordinates):
            assert size % mesh.size(axis) == 0, f"{shape} doesn't divide over {axis}={mesh.size(axis)}"
            size //= mesh.size(axis)
            start += coordinates[axis] * size
        starts.append(start)
        sizes.append(size)
    return Part(tuple(starts), tuple(sizes))


def cut_dim(shape: tuple[int, ...], ways: int) -> int:
    """The dim along which ZeRO splits a part: its rows.

    Where ranks would get so unlike numbers of rows that more than an eighth of what is gathered were padding, as of a
    rank's two experts over four ranks, it is the first other dim that divides, but for the last: what is kept for each
    row of a matrix sums over that one.
    """
    rows = shape[0] if shape else 1
    if 8 * -(-rows // ways) * ways <= 9 * rows:
        return 0
    return next((dim for dim in range(1, len(shape) - 1) if shape[dim] % ways == 0), 0)


def share_of(part: Part, ways: int, index: int) -> Part:
    """The box that remains of a part when ZeRO splits it along its ``cut_dim``, as torch.chunk does: the last ones may
    be smaller."""
    dim = cut_dim(part.shape, ways)
    size = part.shape[dim]
    chunk = -(-size // ways)
    first = min(index * chunk, size)
    count = min(chunk, size - first)
    shape = (*part.shape[:dim], count, *part.shape[dim + 1 :])
    return Part(part.shifted(dim, first).start, shape)
