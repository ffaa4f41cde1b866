"""Parts of a tensor replaced, as in-place assignments become when they are made functional: slices put together."""

import math
from collections.abc import Sequence
from dataclasses import replace

from autoplan.trace.canonical_forms import Builder, Ref, form, positive


@form("aten.copy.default")
def copy(b: Builder, x: Ref, source: Ref, non_blocking: bool = False) -> Ref:
    """The source in the shape and dtype of what it overwrites."""
    return b.expand(b.cast(source, b.type(x).dtype), b.shape(x))


@form("aten.fill.Tensor")
def fill(b: Builder, x: Ref, value: Ref) -> Ref:
    return copy(b, x, value)


@form("aten.fill.Scalar")
def fill_number(b: Builder, x: Ref, value: bool | int | float) -> Ref:
    return b.full(b.shape(x), value, b.type(x).dtype)


@form("aten.slice_scatter.default")
def slice_scatter(
    b: Builder, x: Ref, source: Ref, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Ref:
    """x with x[.., start:stop, ..] = source; kept as it is, without a rule, where it leaves gaps."""
    dim = positive(dim, len(b.shape(x)))
    size = b.shape(x)[dim]
    first, last, step = slice(start, stop, step).indices(size)
    if step != 1:
        return b.emit("aten.slice_scatter.default", x, source, dim, first, last, step)
    source = b.cast(source, b.type(x).dtype)
    parts = [(0, first), None, (max(first, last), size)]
    found = [source if p is None else kept(b, x, dim, *p) for p in parts if p is None or p[0] < p[1]]
    return found[0] if len(found) == 1 else b.emit("aten.cat.default", tuple(found), dim)


def kept(b: Builder, x: Ref, dim: int, first: int, last: int) -> Ref:
    """x[.., first:last, ..], of the part that holds it where x was put together: what is assigned part by part is
    joined once, and the empty tensor that it began with isn't read."""
    joined, start = b.maker(x, "aten.cat.default"), 0
    if joined is not None and joined.args[1] == dim:
        for part in map(Ref, joined.operands):
            end = start + b.shape(part)[dim]
            if start <= first and last <= end and b.type(part) == replace(b.type(x), shape=b.shape(part)):
                return b.slice(part, dim, first - start, last - start)
            start = end
    return b.slice(x, dim, first, last)


@form("aten.select_scatter.default")
def select_scatter(b: Builder, x: Ref, source: Ref, dim: int, index: int) -> Ref:
    """x with x[.., index, ..] = source."""
    dim = positive(dim, len(b.shape(x)))
    at = positive(index, b.shape(x)[dim])
    return slice_scatter(b, x, b.emit("aten.unsqueeze.default", source, dim), dim, at, at + 1)


@form("aten.index_put.default")
def index_put(b: Builder, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False) -> Ref:
    """Under a mask of leading dims one value is filled in; several have no shape that could be told."""
    given = [ref for ref in indices if ref is not None]
    mask = given[0]
    if len(given) != 1 or indices[0] is None or b.type(mask).dtype != "bool" or math.prod(b.shape(values)) != 1:
        return b.emit("aten.index_put.default", x, tuple(indices), values, bool(accumulate))
    mask = b.reshape(mask, (*b.shape(mask), *(1 for _ in b.shape(x)[len(b.shape(mask)) :])))
    value = b.cast(b.reshape(values, ()), b.type(x).dtype)
    if not accumulate:
        return b.emit("aten.where.self", mask, value, x)
    return b.emit("aten.where.self", mask, b.emit("aten.add.Tensor", x, value), x)
