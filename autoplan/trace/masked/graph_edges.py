"""What a mask keeps of a graph's edges: read by them, put beside loops, summed where they lead.

``edge_index[:, mask]`` leaves out an edge from a node to itself, and has as many columns as the mask has true values.
All columns are computed in its place. A sum at the edges' targets leaves out those that the mask drops; a maximum is
taken over -inf there. Sizes that count kept edges are only taken by what makes or reshapes a tensor of that size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import Ref
from autoplan.rules.registry import broadcast_shape
from autoplan.trace.builder import Builder, Value
from autoplan.trace.canonical_forms import positive, positives
from autoplan.trace.masked.masked_rows import MaskedRows

Form = Callable[..., Value]


@dataclass(frozen=True)
class Count:
    """How many values a mask keeps, and further ones beside them; no program knows the number.

    most  how many they are if the mask keeps all
    """

    most: int


MAKING = ("aten.ones.default", "aten.zeros.default", "aten.full.default")
ALIKE = ("aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default", "aten.new_empty.default")
BESIDE = ("aten.detach.default", "aten.alias.default", "aten.to.dtype", "aten.dropout.default", "aten.clone.default",
          "aten.contiguous.default", "aten.zeros_like.default", "aten.ones_like.default")  # fmt: skip
"""Operators of single elements that torch doesn't tag as such."""
REDUCED = {"amax": -math.inf, "amin": math.inf}
"""What dropped edges are filled with, so that they change nothing."""


def making(op: str, args: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """The arguments of what makes a tensor of a counted size: alike for every edge, it is made for one of them."""
    if op not in MAKING or not isinstance(args[0], tuple) or counted(args[1:]):
        return None
    return (tuple(1 if isinstance(size, Count) else size for size in args[0]), *args[1:])


def counted(argument: Value) -> bool:
    return isinstance(argument, Count) or (isinstance(argument, tuple) and any(map(counted, argument)))


def moved(
    b: Builder, op: str, args: Sequence[Value], kwargs: Mapping[str, Value], canonical: Callable[..., Value], *,
    pointwise: bool,
) -> Value:  # fmt: skip
    """An operator of which some operand is what a mask keeps; None where it has no such form."""
    known = FORMS.get(op)
    if known is not None and kwargs.keys() <= {"include_self", "alpha"}:
        return known(b, *args, **kwargs)
    if op in ALIKE and isinstance(args[0], MaskedRows):
        return canonical(op, (args[0].rows, *args[1:]), kwargs)
    if pointwise or op in BESIDE:
        return elementwise(b, op, args, kwargs, canonical)
    return None


def elementwise(
    b: Builder, op: str, args: Sequence[Value], kwargs: Mapping[str, Value], canonical: Callable[..., Value]
) -> Value:
    """Edges meet their own: one mask, at one dim from the back, along which all else is alike."""
    several = [arg for arg in args if isinstance(arg, MaskedRows)]
    if not several:
        return None
    first, back = several[0], from_back(b, several[0])
    others = [b.shape(arg) for arg in args if isinstance(arg, Ref)]
    beside = all(len(shape) < back or shape[-back] == 1 for shape in others)
    if not beside or any((each.name, from_back(b, each)) != (first.name, back) for each in several):
        return None
    result = canonical(op, tuple(arg.rows if isinstance(arg, MaskedRows) else arg for arg in args), kwargs)
    assert isinstance(result, Ref)
    return replace(first, rows=result, dim=len(b.shape(result)) - back)


def from_back(b: Builder, kept: MaskedRows) -> int:
    return len(b.shape(kept.rows)) - kept.dim


def size_of(b: Builder, x: MaskedRows, dim: int) -> Count | int:
    size = b.shape(x.rows)[dim]
    return Count(size) if dim % len(b.shape(x.rows)) == x.dim else size


def select(b: Builder, x: MaskedRows, dim: int, index: int) -> MaskedRows | None:
    dim = positive(dim, len(b.shape(x.rows)))
    if dim == x.dim:
        return None
    return replace(x, rows=b.emit("aten.select.int", x.rows, dim, positive(index, b.shape(x.rows)[dim])),
                   dim=x.dim - (dim < x.dim))  # fmt: skip


def unsqueeze(b: Builder, x: MaskedRows, dim: int) -> MaskedRows:
    dim = positive(dim, len(b.shape(x.rows)) + 1)
    return replace(x, rows=b.emit("aten.unsqueeze.default", x.rows, dim), dim=x.dim + (dim <= x.dim))


def reshape(b: Builder, x: MaskedRows, sizes: Sequence[Value]) -> MaskedRows | None:
    """Where the edges' dim stays one: what stands before it is as large as before."""
    shape = b.shape(x.rows)
    told = [size.most if isinstance(size, Count) else size for size in sizes]
    whole = [int(size) for size in told if isinstance(size, int)]
    if -1 in whole:
        whole[whole.index(-1)] = -math.prod(shape) // math.prod(whole)
    before = math.prod(shape[: x.dim])
    at = [i for i, size in enumerate(whole) if size == shape[x.dim] and math.prod(whole[:i]) == before]
    if not at or math.prod(whole) != math.prod(shape):
        return None
    return replace(x, rows=b.reshape(x.rows, whole), dim=at[-1])


def expand(b: Builder, x: MaskedRows, sizes: Sequence[Value], *_: object) -> MaskedRows:
    ahead = len(sizes) - len(b.shape(x.rows))
    own = (*(1 for _ in range(ahead)), *b.shape(x.rows))
    told = [size.most if isinstance(size, Count) else size for size in sizes]
    shape = [mine if asked == -1 else int(asked) for asked, mine in zip(told, own, strict=True)]  # type: ignore[call-overload]
    return replace(x, rows=b.expand(x.rows, shape), dim=x.dim + ahead)


def expand_as(b: Builder, x: MaskedRows | Ref, other: MaskedRows | Ref) -> MaskedRows | None:
    """Like another tensor of as many edges, or of one edge that stands for all."""
    if isinstance(x, Ref):
        return None
    like = other.rows if isinstance(other, MaskedRows) else other
    if isinstance(other, MaskedRows) and (other.name, from_back(b, other)) != (x.name, from_back(b, x)):
        return None
    return expand(b, x, broadcast_shape(b.shape(x.rows), b.shape(like)))


def cat(b: Builder, parts: Sequence[Value], dim: int = 0) -> MaskedRows | None:
    """Beside edges that nothing drops, or that another mask keeps."""
    several = [part for part in parts if isinstance(part, MaskedRows)]
    dim = positive(dim, len(b.shape(several[0].rows)))
    if any(part.dim != dim for part in several):
        return None
    rows = [part.rows if isinstance(part, MaskedRows) else part for part in parts]
    assert all(isinstance(row, Ref) for row in rows)
    sizes = [b.shape(row)[dim] for row in rows]
    sized = [*zip(parts, sizes, strict=True)]
    masks = [part.mask if isinstance(part, MaskedRows) else b.full((n,), True, "bool") for part, n in sized]
    name = ",".join(part.name if isinstance(part, MaskedRows) else str(n) for part, n in sized)
    return MaskedRows(b.emit("aten.cat.default", tuple(rows), dim), b.emit("aten.cat.default", tuple(masks), 0),
                f"({name})", dim)  # fmt: skip


def reads(op: str) -> Form:
    """x[edges] along one dim: dropped edges name nodes, too."""

    def read(b: Builder, x: Value, dim: int, edges: Value) -> MaskedRows | None:
        if not isinstance(x, Ref) or not isinstance(edges, MaskedRows) or len(b.shape(edges.rows)) != 1:
            return None
        dim = positive(dim, len(b.shape(x)))
        return replace(edges, rows=b.emit(op, x, dim, edges.rows), dim=dim)

    return read


def index(b: Builder, x: Value, indices: Sequence[Value]) -> MaskedRows | None:
    if isinstance(x, MaskedRows):
        return fewer(b, x, indices)
    given = [(dim, one) for dim, one in enumerate(indices) if one is not None]
    return reads("aten.index_select.default")(b, x, *given[0]) if len(given) == 1 else None  # type: ignore[return-value]


def fewer(b: Builder, x: MaskedRows, indices: Sequence[Value]) -> MaskedRows | None:
    """x[mask] of what a mask keeps already, along the same dim: what both keep."""
    mask = indices[0]
    if len(indices) != 1 or not isinstance(mask, MaskedRows) or mask.name != x.name or x.dim:
        return None
    if b.type(mask.rows).dtype != "bool":
        return None
    both = b.emit("aten.logical_and.default", x.mask, mask.rows)
    return MaskedRows(x.rows, both, f"{mask.rows.name} of {x.name}")


def filled(b: Builder, source: Value, edges: MaskedRows, value: float, dim: int) -> Ref | None:
    """What edges bring, with a value in place of what dropped ones would; of one that stands for all, all of them."""
    if isinstance(source, MaskedRows) and (source.name, source.dim) != (edges.name, dim):
        return None
    rows = source.rows if isinstance(source, MaskedRows) else source
    assert isinstance(rows, Ref)
    count = b.shape(edges.mask)[0]
    shape = list(b.shape(rows))
    if shape[dim] not in (1, count):
        return None
    shape[dim] = count
    dropped = b.emit("aten.bitwise_not.default", edges.mask)
    dropped = b.reshape(dropped, (*(1 for _ in shape[:dim]), count, *(1 for _ in shape[dim + 1 :])))
    return b.emit("aten.masked_fill.Scalar", b.expand(rows, shape), dropped, value)


def scatter_add(b: Builder, x: Value, dim: int, edges: Value, source: Value) -> Value:
    if not isinstance(x, Ref) or not isinstance(edges, MaskedRows) or positive(dim, len(b.shape(x))) != edges.dim:
        return None
    rows = filled(b, source, edges, 0, edges.dim)
    return None if rows is None else b.emit("aten.scatter_add.default", x, edges.dim, edges.rows, rows)


def index_add(b: Builder, x: Value, dim: int, edges: Value, source: Value, *, alpha: float = 1) -> Value:
    if not isinstance(x, Ref) or not isinstance(edges, MaskedRows) or alpha != 1:
        return None
    dim = positive(dim, len(b.shape(x)))
    rows = filled(b, source, edges, 0, dim)
    return None if rows is None else b.emit("aten.index_add.default", x, dim, edges.rows, rows)


def scatter_reduce(
    b: Builder, x: Value, dim: int, edges: Value, source: Value, reduce: str, include_self: bool = True
) -> Value:
    """A greatest or least value; a target that no edge leads to keeps what it had."""
    if not isinstance(x, Ref) or not isinstance(edges, MaskedRows) or edges.dim != positive(dim, len(b.shape(x))):
        return None
    if reduce == "sum" and include_self:
        return scatter_add(b, x, dim, edges, source)
    if reduce not in REDUCED:
        return None
    fill = REDUCED[reduce]
    rows = filled(b, source, edges, fill, edges.dim)
    if rows is None:
        return None
    own = (("include_self", include_self),)
    found = b.emit("aten.scatter_reduce.two", x, edges.dim, edges.rows, rows, reduce, kwargs=own)
    return found if include_self else b.emit("aten.where.self", b.emit("aten.eq.Scalar", found, fill), x, found)


def index_put(b: Builder, x: Value, indices: Sequence[Value], kept: Value, accumulate: bool = False) -> Value:
    """x[mask] = what was computed of the rows that the same mask keeps."""
    mask = indices[0]
    if isinstance(x, MaskedRows) and isinstance(mask, MaskedRows) and isinstance(kept, MaskedRows):
        within = fewer(b, x, indices)
        same = within is not None and within.name == kept.name and not kept.dim and not accumulate
        rows = index_put(b, x.rows, [mask.rows], replace(kept, name=mask.rows.name)) if same else None
        return replace(x, rows=rows) if isinstance(rows, Ref) else None
    if not isinstance(x, Ref) or not isinstance(kept, MaskedRows) or not isinstance(mask, Ref) or len(indices) != 1:
        return None
    if accumulate or kept.dim or mask.name != kept.name:
        return None
    mask = b.reshape(mask, (*b.shape(mask), *(1 for _ in b.shape(x)[len(b.shape(mask)) :])))
    return b.emit("aten.where.self", mask, b.cast(b.reshape(kept.rows, b.shape(x)), b.type(x).dtype), x)


def sum_along(b: Builder, x: MaskedRows, dims: Sequence[int], keepdim: bool = False) -> MaskedRows | None:
    rank = len(b.shape(x.rows))
    along = positives(tuple(dims), rank)
    if x.dim in along:
        return None
    rows = b.emit("aten.sum.dim_IntList", x.rows, along, keepdim)
    return replace(x, rows=rows, dim=x.dim if keepdim else x.dim - sum(d < x.dim for d in along))


def extreme(op: str) -> Form:
    """The greatest or least of all that is kept."""

    def taken(b: Builder, x: MaskedRows) -> Ref | None:
        rows = filled(b, x, x, REDUCED[op], x.dim) if b.type(x.rows).floating else None
        return None if rows is None else b.emit(f"aten.{op}.default", rows, tuple(range(len(b.shape(rows)))), False)

    return taken


FORMS: dict[str, Form] = {
    "aten.sym_size.int": size_of, "aten.select.int": select, "aten.unsqueeze.default": unsqueeze,
    "aten.view.default": reshape, "aten.reshape.default": reshape, "aten.expand.default": expand,
    "aten.expand_as.default": expand_as, "aten.cat.default": cat, "aten.index.Tensor": index,
    "aten.index_select.default": reads("aten.index_select.default"), "aten.scatter_add.default": scatter_add,
    "aten.index_add.default": index_add, "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_put.default": index_put, "aten.sum.dim_IntList": sum_along, "aten.max.default": extreme("amax"),
    "aten.min.default": extreme("amin"),
}  # fmt: skip
