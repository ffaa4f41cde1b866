"""A part of a dim, with what lies before and behind it on other ranks.

One exchange forward: every rank sends what others see of its part, mostly to the two beside it. Backward the gradients
of what was seen go back the same way, and are added up where it came from.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis

Bounds = tuple[int, int]


def with_halo(x: Tensor, dim: int, before: int, behind: int, fill: float, axis: MeshAxis) -> Tensor:
    """x S(dim), n/ways long there -> before + n/ways + behind, ``fill`` where that lies outside of the whole."""
    return _Halo.apply(x, dim, before, behind, fill, axis)


def seen(viewer: int, owner: int, length: int, before: int, behind: int) -> Bounds:
    """What a rank sees of another's part: from where to where in it; equal bounds where nothing."""
    offset = (viewer - owner) * length
    start = min(max(offset - before, 0), length)
    return start, max(start, min(offset + length + behind, length))


class _Halo(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, before: int, behind: int, fill: float, axis: MeshAxis) -> Tensor:
        length = x.shape[dim]
        views = [seen(member, axis.rank, length, before, behind) for member in range(axis.size)]
        owned = [seen(axis.rank, member, length, before, behind) for member in range(axis.size)]
        views[axis.rank] = owned[axis.rank] = (0, 0)
        ctx.dim, ctx.axis, ctx.views, ctx.owned = dim, axis, views, owned
        ctx.edges = edges(axis, length, before, behind)
        parts = [between(x, dim, bounds) for bounds in views]
        arrived = exchanged(parts, [shaped(x, dim, bounds) for bounds in owned], axis)
        first, last = (fitting(x, dim, size).fill_(fill) for size in ctx.edges)
        return torch.cat([first, *arrived[: axis.rank], x, *arrived[axis.rank :], last], dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dim, axis = ctx.dim, ctx.axis
        lengths = [stop - start for start, stop in ctx.owned]
        first, last = ctx.edges
        own = gradient.shape[dim] - first - last - sum(lengths)
        pieces = gradient.split([first, *lengths[: axis.rank], own, *lengths[axis.rank :], last], dim)
        result = pieces[1 + axis.rank].clone()
        sent = [*pieces[1 : 1 + axis.rank], *pieces[2 + axis.rank : -1]]
        arrived = exchanged(sent, [shaped(result, dim, bounds) for bounds in ctx.views], axis)
        for (start, stop), part in zip(ctx.views, arrived, strict=True):
            result.narrow(dim, start, stop - start).add_(part)
        return result, None, None, None, None, None


def edges(axis: MeshAxis, length: int, before: int, behind: int) -> Bounds:
    """How much of what is before, and behind, lies outside of the whole."""
    return max(0, before - axis.rank * length), max(0, behind - (axis.size - 1 - axis.rank) * length)


def between(x: Tensor, dim: int, bounds: Bounds) -> Tensor:
    return x.narrow(dim, bounds[0], bounds[1] - bounds[0])


def shaped(x: Tensor, dim: int, bounds: Bounds) -> tuple[int, ...]:
    return (*x.shape[:dim], bounds[1] - bounds[0], *x.shape[dim + 1 :])


def fitting(x: Tensor, dim: int, size: int) -> Tensor:
    return x.new_empty(shaped(x, dim, (0, size)))


def exchanged(parts: list[Tensor], coming: list[tuple[int, ...]], axis: MeshAxis) -> list[Tensor]:
    """A part to each member, and one of this shape from each."""
    counts = [int(torch.Size(shape).numel()) for shape in coming]
    arrived = raw.all_to_all_v([part.reshape(-1) for part in parts], counts, axis)
    return [part.view(shape) for part, shape in zip(arrived, coming, strict=True)]
