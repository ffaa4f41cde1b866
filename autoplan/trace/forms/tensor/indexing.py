"""Reading by tensors of indices: a dim that is read in its own order isn't read by indices at all.

``mask[rows, keys]``, with ``rows`` an arange over the batch, and ``x[rows, last]`` are how models read each row at
places of its own. An index keeps the dim that it reads whole, so the batch could not be split; the former is a view,
the latter a gather, along which rows split.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.errors import TraceError
from autoplan.rules.registry import broadcast_shape
from autoplan.trace.canonical_forms import Builder, Ref, form, positive

Place = tuple[str, int]  # ("x", dim of the tensor that is read) or ("i", dim of the indices' common shape)


@dataclass(frozen=True)
class Reading:
    """x[indices], by dims of x; ``shape`` is the indices' common one, ``own`` the dims of it that an arange over the
    whole of a dim of x runs along."""

    x: Ref
    indices: Mapping[int, Ref]
    shape: tuple[int, ...]
    own: Mapping[int, int]


@form("aten.index.Tensor")
def index(b: Builder, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    given = {dim: ref for dim, ref in enumerate(indices) if ref is not None}
    if any(b.type(ref).dtype in ("bool", "uint8") for ref in given.values()):
        raise TraceError(
            "x[mask]",
            "how many values a mask keeps depends on its own, and no program has tensors of such a size",
            "compute all and leave out what doesn't count: torch.where, or a loss with ignore_index",
        )
    if (part := one_row(b, x, given)) is not None:
        return part
    shape = broadcast_shape(*(b.shape(ref) for ref in given.values()))
    own = {dim: at for dim, ref in given.items() if (at := whole_range(b, ref, b.shape(x)[dim], shape)) is not None}
    own = {dim: at for dim, at in own.items() if list(own.values()).count(at) == 1}
    read = Reading(x, given, shape, own)
    others = [dim for dim in given if dim not in own]
    if own and len(others) == 1 and any(varies(b, read, others[0], at) for at in own.values()):
        return gathered(b, read, others[0])
    if own and not any(varies(b, read, dim, at) for dim in others for at in own.values()):
        return viewed(b, read)
    return b.emit("aten.index.Tensor", x, tuple(indices))


def one_row(b: Builder, x: Ref, given: Mapping[int, Ref]) -> Ref | None:
    """x[.., [-1], ..]: read at one place that is known, a slice of length one."""
    if len(given) != 1:
        return None
    ((dim, ref),) = given.items()
    filled = b.maker(ref, "aten.full.default")
    if filled is None or b.shape(ref) != (1,) or not isinstance(filled.args[1], int):
        return None
    start = positive(filled.args[1], b.shape(x)[dim])
    return b.slice(x, dim, start, start + 1)


def whole_range(b: Builder, ref: Ref, size: int, shape: tuple[int, ...]) -> int | None:
    """The dim, of a shape that a tensor is broadcast to, along which it is 0, 1, …, size - 1, the same in all others;
    None where it isn't."""
    dim = range_dim(b, ref, size)
    at = -1 if dim is None else dim + len(shape) - len(b.shape(ref))
    return at if at >= 0 and shape[at] == size else None


def range_dim(b: Builder, ref: Ref, size: int) -> int | None:
    node = b.nodes.get(ref.name)
    if node is None or (node.op == "aten.arange.default" and node.args != (size,)):
        return None
    if node.op == "aten.arange.default":
        return 0 if b.type(ref).dtype.startswith("int") else None
    source = node.args[0] if node.args else None
    before = range_dim(b, source, size) if isinstance(source, Ref) else None
    if before is None or not isinstance(source, Ref):
        return None
    match node.op, node.args[1:]:
        case "aten.unsqueeze.default", (int(at),):
            return before + (at <= before)
        case "aten.expand.default", _:
            return before + len(node.type.shape) - len(b.shape(source))
        case "aten.to.dtype", _ if node.type.dtype in ("int64", "int32"):
            return before
        case "aten.reshape.default", _ if size > 1 and math.prod(node.type.shape) == size and size in node.type.shape:
            return node.type.shape.index(size)
    return None


def varies(b: Builder, read: Reading, dim: int, at: int) -> bool:
    """Whether the index of a dim may differ along a dim of the common shape."""
    own = b.shape(read.indices[dim])
    at -= len(read.shape) - len(own)
    return at >= 0 and own[at] != 1


def order(rank: int, given: Sequence[int], chosen: Sequence[int]) -> list[Place]:
    """The dims of a reading's result: the indices' stand where the indexed ones stood, or first where those aren't
    neighbours."""
    first, last = min(given), max(given)
    where = first if last - first == len(given) - 1 else 0
    free: list[Place] = [("x", dim) for dim in range(rank) if dim not in given]
    read: list[Place] = [("i", at) for at in chosen]
    before = [place for place in free if place[1] < where]
    return [*before, *read, *free[len(before) :]]


def viewed(b: Builder, read: Reading) -> Ref:
    """Without the dims that are read in order, which then stand where their aranges put them."""
    rank = len(b.shape(read.x))
    target = order(rank, list(read.indices), range(len(read.shape)))
    rest = {dim: without(b, ref, read) for dim, ref in read.indices.items() if dim not in read.own}
    moved = {("x", dim): ("i", at) for dim, at in read.own.items()}
    if not rest:
        have: list[Place] = [moved.get(("x", dim), ("x", dim)) for dim in range(rank)]
        result = b.permute(read.x, (have.index(place) for place in target if place in have))
        return b.reshape(result, (size_of(b, read, place) for place in target))
    chosen = [at for at in range(len(read.shape)) if at not in read.own.values()]
    result = b.emit("aten.index.Tensor", read.x, tuple(rest.get(dim) for dim in range(max(rest) + 1)))
    have = [moved.get(place, place) for place in order(rank, list(rest), chosen)]
    return b.permute(result, (have.index(place) for place in target))


def size_of(b: Builder, read: Reading, place: Place) -> int:
    return b.shape(read.x)[place[1]] if place[0] == "x" else read.shape[place[1]]


def without(b: Builder, ref: Ref, read: Reading) -> Ref:
    """An index without the dims that aranges run along."""
    return b.reshape(
        aligned(b, ref, len(read.shape)),
        (size for at, size in enumerate(padded(b.shape(ref), len(read.shape))) if at not in read.own.values()),
    )


def padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def aligned(b: Builder, ref: Ref, rank: int) -> Ref:
    return b.reshape(ref, padded(b.shape(ref), rank))


def gathered(b: Builder, read: Reading, dim: int) -> Ref:
    """One dim read at places that differ along dims read in order: x as [rows.., dim, free..], gathered along dim."""
    shape, rows = b.shape(read.x), sorted(read.own, key=lambda row: read.own[row])
    free = [d for d in range(len(shape)) if d not in (*rows, dim)]
    own = [read.own[row] for row in rows]
    places = [at for at in range(len(read.shape)) if at not in own]
    x = b.permute(read.x, (*rows, dim, *free))
    chosen = b.permute(b.expand(aligned(b, read.indices[dim], len(read.shape)), read.shape), (*own, *places))
    lead, several = [shape[row] for row in rows], [read.shape[at] for at in places]
    chosen = b.reshape(chosen, (*lead, math.prod(several), *(1 for _ in free)))
    chosen = b.expand(from_front(b, chosen, shape[dim]), (*lead, math.prod(several), *(shape[d] for d in free)))
    result = b.emit("aten.gather.default", x, len(rows), chosen)
    result = b.reshape(result, (*lead, *several, *(shape[d] for d in free)))
    have: list[Place] = [*(("i", at) for at in (*own, *places)), *(("x", d) for d in free)]
    target = order(len(shape), list(read.indices), range(len(read.shape)))
    return b.permute(result, (have.index(place) for place in target))


def from_front(b: Builder, chosen: Ref, size: int) -> Ref:
    """gather knows no places counted from the end."""
    negative = b.emit("aten.lt.Scalar", chosen, 0)
    return b.emit("aten.where.self", negative, b.emit("aten.add.Tensor", chosen, size), chosen)
