"""Views: sizes are concrete, dims are counted from the front, and what changes nothing is gone."""

import math
from collections.abc import Sequence

import torch

from autoplan.trace.canonical_forms import Builder, Ref, form, positive


@form("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.view_copy.default")
def reshape(b: Builder, x: Ref, shape: Sequence[int]) -> Ref:
    return b.reshape(x, concrete(b.shape(x), shape))


def concrete(source: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with -1 resolved."""
    known = math.prod(size for size in shape if size != -1)
    return tuple(math.prod(source) // known if size == -1 else size for size in shape)


@form("aten.as_strided.default")
def as_strided(b: Builder, x: Ref, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Ref:
    """Of what lies contiguously (``convert``): the dims before that are walked as they lie stay, and of each row's
    elements those that the other strides come to are read."""
    sizes, kept = b.shape(x), 0
    row = math.prod(sizes)
    while not offset and kept < min(len(sizes), len(shape)) - 1 and shape[kept] == sizes[kept]:
        inner = row // max(sizes[kept], 1)
        reach = sum((size - 1) * stride for size, stride in zip(shape[kept + 1 :], strides[kept + 1 :], strict=True))
        if strides[kept] != inner or reach >= inner:
            break
        row, kept = inner, kept + 1
    rows = b.reshape(x, (*sizes[:kept], row))
    places = b.full((), offset or 0, "int64")
    for size, stride in zip(shape[kept:], strides[kept:], strict=True):
        steps = b.emit("aten.mul.Tensor", b.emit("aten.arange.start_step", 0, size, 1), stride)
        places = b.emit("aten.add.Tensor", b.emit("aten.unsqueeze.default", places, len(b.shape(places))), steps)
    index = b.reshape(places, (math.prod(shape[kept:]),))
    return b.reshape(b.emit("aten.index_select.default", rows, kept, index), shape)


@form("aten.flatten.using_ints")
def flatten(b: Builder, x: Ref, start: int = 0, end: int = -1) -> Ref:
    shape = b.shape(x)
    start, end = positive(start, len(shape)), positive(end, len(shape))
    return b.reshape(x, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@form("aten.unflatten.int")
def unflatten(b: Builder, x: Ref, dim: int, sizes: Sequence[int]) -> Ref:
    shape = b.shape(x)
    dim = positive(dim, len(shape))
    return b.reshape(x, (*shape[:dim], *concrete((shape[dim],), sizes), *shape[dim + 1 :]))


@form(
    "aten.clone.default", "aten.contiguous.default", "aten.alias.default", "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
)  # fmt: skip
def identity(b: Builder, x: Ref, **_: object) -> Ref:
    return x


@form("aten.unsqueeze.default")
def unsqueeze(b: Builder, x: Ref, dim: int) -> Ref:
    return b.emit("aten.unsqueeze.default", x, positive(dim, len(b.shape(x)) + 1))


@form("aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(b: Builder, x: Ref, dims: int | Sequence[int]) -> Ref:
    rank = len(b.shape(x))
    for dim in sorted((positive(d, rank) for d in ((dims,) if isinstance(dims, int) else dims)), reverse=True):
        if b.shape(x)[dim] == 1:
            x = b.emit("aten.squeeze.dim", x, dim)
    return x


@form("aten.squeeze.default")
def squeeze_all(b: Builder, x: Ref) -> Ref:
    return squeeze(b, x, tuple(range(len(b.shape(x)))))


@form("aten.transpose.int")
def transpose(b: Builder, x: Ref, first: int, second: int) -> Ref:
    rank = len(b.shape(x))
    first, second = positive(first, rank), positive(second, rank)
    return x if first == second else b.emit("aten.transpose.int", x, first, second)


@form("aten.t.default", "aten.numpy_T.default")
def matrix_transpose(b: Builder, x: Ref) -> Ref:
    return x if len(b.shape(x)) < 2 else transpose(b, x, 0, 1)


@form("aten.permute.default")
def permute(b: Builder, x: Ref, dims: Sequence[int]) -> Ref:
    return b.permute(x, (positive(d, len(dims)) for d in dims))


@form("aten.expand.default")
def expand(b: Builder, x: Ref, shape: Sequence[int], **_: object) -> Ref:
    own = (1,) * (len(shape) - len(b.shape(x))) + b.shape(x)
    return b.expand(x, tuple(o if size == -1 else size for o, size in zip(own, shape, strict=True)))


@form("aten.expand_as.default")
def expand_as(b: Builder, x: Ref, other: Ref) -> Ref:
    return b.expand(x, b.shape(other))


@form("aten.broadcast_tensors.default")
def broadcast_tensors(b: Builder, tensors: Sequence[Ref]) -> tuple[Ref, ...]:
    shape = torch.broadcast_shapes(*(b.shape(x) for x in tensors))
    return tuple(b.expand(x, shape) for x in tensors)


@form("aten.repeat.default")
def repeat(b: Builder, x: Ref, times: Sequence[int]) -> Ref:
    """Each dim behind one of its own that is expanded, merged with it: [n, s] for b rows is [b, n, s] as [b * n, s],
    of which the rows can be split."""
    x = b.reshape(x, (1,) * (len(times) - len(b.shape(x))) + b.shape(x))
    shape = b.shape(x)
    apart = [t > 1 and size != 1 for t, size in zip(times, shape, strict=True)]
    pairs = list(zip(times, shape, apart, strict=True))
    single = tuple(s for _, size, two in pairs for s in ((1, size) if two else (size,)))
    several = tuple(s for t, size, two in pairs for s in ((t, size) if two else (t * size,)))
    whole = tuple(t * size for t, size in zip(times, shape, strict=True))
    return b.reshape(b.expand(b.reshape(x, single), several), whole)


@form("aten.repeat_interleave.self_int")
def repeat_interleave(b: Builder, x: Ref, times: int, dim: int | None = None, **_: object) -> Ref:
    """Each entry several times in a row: a dim of its own behind the entry's, merged with it."""
    if dim is None:
        x, dim = b.reshape(x, (math.prod(b.shape(x)),)), 0
    shape = b.shape(x)
    dim = positive(dim, len(shape))
    apart = b.emit("aten.unsqueeze.default", x, dim + 1)
    repeated = b.expand(apart, (*shape[: dim + 1], times, *shape[dim + 1 :]))
    return b.reshape(repeated, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


@form("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(b: Builder, x: Ref, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1) -> Ref:
    dim = positive(dim, len(b.shape(x)))
    first, last, step = slice(start, stop, step).indices(b.shape(x)[dim])
    if step != 1:
        return b.emit("aten.slice.Tensor", x, dim, first, last, step)
    return b.slice(x, dim, first, max(first, last))


@form("aten.narrow.default")
def narrow(b: Builder, x: Ref, dim: int, start: int, length: int) -> Ref:
    return slice_(b, x, dim, start, start + length)


@form("aten.select.int", "aten.select_copy.int")
def select(b: Builder, x: Ref, dim: int, index: int) -> Ref:
    dim = positive(dim, len(b.shape(x)))
    return b.emit("aten.select.int", x, dim, positive(index, b.shape(x)[dim]))


@form("aten.split.Tensor", "aten.split_copy.Tensor")
def split(b: Builder, x: Ref, size: int, dim: int = 0) -> tuple[Ref, ...]:
    dim = positive(dim, len(b.shape(x)))
    total = b.shape(x)[dim]
    return tuple(b.slice(x, dim, at, min(at + size, total)) for at in range(0, total, size))


@form("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default")
def split_with_sizes(b: Builder, x: Ref, sizes: Sequence[int], dim: int = 0) -> tuple[Ref, ...]:
    dim = positive(dim, len(b.shape(x)))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(b.slice(x, dim, at, at + size) for at, size in zip(starts, sizes, strict=True))


@form("aten.chunk.default")
def chunk(b: Builder, x: Ref, chunks: int, dim: int = 0) -> tuple[Ref, ...]:
    dim = positive(dim, len(b.shape(x)))
    return split(b, x, -(-b.shape(x)[dim] // chunks), dim)


@form("aten.unbind.int")
def unbind(b: Builder, x: Ref, dim: int = 0) -> tuple[Ref, ...]:
    dim = positive(dim, len(b.shape(x)))
    return tuple(b.emit("aten.select.int", x, dim, index) for index in range(b.shape(x)[dim]))


@form("aten.cat.default")
def cat(b: Builder, parts: Sequence[Ref], dim: int = 0) -> Ref:
    """What has no entries adds none; torch takes an empty vector beside tensors of any shape, as an empty cache is."""
    rank = max(len(b.shape(part)) for part in parts)
    dim = positive(dim, rank)
    kind = b.type(next(part for part in parts if len(b.shape(part)) == rank)).dtype
    held = [p for p in parts if b.type(p).dtype != kind or (len(b.shape(p)) == rank and b.shape(p)[dim] > 0)]
    held = held or list(parts[:1])
    return held[0] if len(held) == 1 else b.emit("aten.cat.default", tuple(held), dim)


@form("aten.stack.default")
def stack(b: Builder, parts: Sequence[Ref], dim: int = 0) -> Ref:
    dim = positive(dim, len(b.shape(parts[0])) + 1)
    return cat(b, tuple(b.emit("aten.unsqueeze.default", part, dim) for part in parts), dim)
