"""What a mask keeps, without a size that follows from values: all rows, and which of them count.

``logits[mask]`` has as many rows as the mask has true values, so no program could hold it. A loss over it needs none of
that: each row is computed, kept or not, and a sum leaves out those that aren't. Operators that mix rows, or ask how
many there are, can't be written so and are refused.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from autoplan.errors import TraceError
from autoplan.ir.graph import Ref, TensorType
from autoplan.trace.builder import Builder, Value
from autoplan.trace.masked.graph_edges import Count, counted, making, moved
from autoplan.trace.masked.masked_rows import MaskedRows

IGNORED = -100
NONE, MEAN = 0, 1  # ATen's enumeration of reductions
CLASS_LOSSES = ("aten.cross_entropy_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss.default")
LOSSES = {
    "aten.mse_loss.default": 2, "aten.l1_loss.default": 2, "aten.smooth_l1_loss.default": 2,
    "aten.huber_loss.default": 2, "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4,
}  # fmt: skip
"""Losses of single elements, with the place of their reduction among the arguments."""
SEQUENCES = "autoplan.ctc_losses.default"
ALONG = {"aten.softmax.int": 1, "aten.log_softmax.int": 1}  # operators of rows, with the place of their dim
Canonical = Callable[[str, tuple[Value, ...], Mapping[str, Value]], Value]


def kept(b: Builder, op: str, args: Sequence[Value]) -> MaskedRows | None:
    """What an index by one mask over the leading dims keeps, or ``masked_select``; None for any other operator."""
    if op == "aten.masked_select.default":
        return selected(b, args)
    if op != "aten.index.Tensor" or not isinstance(args[0], Ref):
        return None
    x, indices = args[0], args[1]
    assert isinstance(indices, tuple)
    first = indices[-1]
    if len(indices) == 2 and indices[0] is None and isinstance(first, Ref) and b.type(first).dtype == "bool":
        return MaskedRows(x, first, first.name, 1) if len(b.shape(first)) == 1 else None
    if len(indices) != 1 or not isinstance(first, Ref) or b.type(first).dtype != "bool":
        return None
    size, rest = math.prod(b.shape(first)), b.shape(x)[len(b.shape(first)) :]
    return MaskedRows(b.reshape(x, (size, *rest)), b.reshape(first, (size,)), first.name)


def selected(b: Builder, args: Sequence[Value]) -> MaskedRows | None:
    x, mask = args
    if not isinstance(x, Ref) or not isinstance(mask, Ref) or b.shape(x) != b.shape(mask):
        return None
    size = math.prod(b.shape(mask))
    return MaskedRows(b.reshape(x, (size,)), b.reshape(mask, (size,)), mask.name)


def sized(op: str, args: tuple[Value, ...]) -> tuple[Value, ...]:
    """An operator's arguments without sizes that a mask makes. TraceError where it needs the number."""
    if not counted(args) or any(found(args)):
        return args
    told = making(op, args)
    if told is None:
        raise refused(op, "it takes how many they are")
    return told


def added(summands: Value) -> Count:
    """How many values are kept, and a known number beside. TraceError for any other sum."""
    if isinstance(summands, tuple):
        match sorted(summands, key=lambda one: isinstance(one, Count)):
            case int(known), Count(most):
                return Count(most + known)
    raise refused("a sum", "it takes how many they are")


def found(argument: Value) -> Iterator[MaskedRows]:
    if isinstance(argument, MaskedRows):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from found(item)


def plain(argument: Value) -> Value:
    """An argument with all rows in place of those that are kept."""
    if isinstance(argument, MaskedRows):
        return argument.rows
    return tuple(map(plain, argument)) if isinstance(argument, tuple) else argument


def apply(
    b: Builder, canonical: Canonical, op: torch._ops.OpOverload, args: tuple[Value, ...], kwargs: Mapping[str, Value]
) -> Value:
    """An operator of what a mask keeps: more rows, or a number. TraceError where it has no masked form."""
    name, several = str(op), list(found((args, tuple(kwargs.values()))))
    one = several[0]
    if not any(found(tuple(kwargs.values()))):
        result = moved(b, name, args, kwargs, canonical, pointwise=torch.Tag.pointwise in op.tags)
        if result is not None:
            return result
    if any(each.dim for each in several):
        raise refused(name, "it mixes the columns that are kept, or asks how many they are")
    if len({each.name for each in several}) > 1:
        raise refused(name, "it takes what different masks keep")
    given = tuple(map(plain, args))
    if name == SEQUENCES and isinstance(args[1], MaskedRows):
        count = b.shape(given[0])[1]  # of rows, of each of which the mask keeps some targets, wherever they stand
        targets, valid = (b.reshape(x, (count, b.shape(x)[0] // count)) for x in (args[1].rows, one.mask))
        return canonical(name, (given[0], targets, *given[2:]), {**kwargs, "valid": valid})
    if name in CLASS_LOSSES and isinstance(args[1], MaskedRows) and not b.type(args[1].rows).floating:
        place = 5 if name in CLASS_LOSSES[1:] else 4
        ignored = args[place] if len(args) > place else kwargs.get("ignore_index", IGNORED)
        reduction = args[3] if len(args) > 3 else kwargs.get("reduction", MEAN)
        target = b.emit("aten.masked_fill.Scalar", given[1], left_out(b, one, args[1].rows), ignored)
        result = canonical(name, (given[0], target, *given[2:]), kwargs)
        return MaskedRows(result, one.mask, one.name) if reduction == NONE and isinstance(result, Ref) else result
    if name in LOSSES:
        place = LOSSES[name]
        reduction = args[place] if len(args) > place else kwargs.get("reduction", MEAN)
        own = {key: value for key, value in kwargs.items() if key != "reduction"}
        each = canonical(name, (*given[:place], *([None] * (place - len(given))), NONE, *given[place + 1 :]), own)
        assert isinstance(each, Ref)
        rows = MaskedRows(each, one.mask, one.name)
        return rows if reduction == NONE else summed(b, rows, mean=reduction == MEAN)
    if name in ("aten.sum.default", "aten.mean.default"):
        return summed(b, one, mean="mean" in name)
    if name == "aten.broadcast_tensors.default" and len({b.shape(each.rows) for each in several}) == 1:
        return tuple(several)
    along = args[ALONG[name]] if name in ALONG else None
    by_row = name == "aten.linear.default" or (isinstance(along, int) and apart(b, one, along))
    if by_row or (torch.Tag.pointwise in op.tags and beside(b, several, args)):
        result = canonical(name, given, {key: plain(value) for key, value in kwargs.items()})
        assert isinstance(result, Ref)
        if b.shape(result)[:1] == b.shape(one.mask):
            return MaskedRows(result, one.mask, one.name)
    raise refused(name, "it mixes the rows that are kept, or asks how many they are")


def beside(b: Builder, several: Sequence[MaskedRows], args: Sequence[Value]) -> bool:
    """Whether rows meet their own: what is kept has one rank, and all else is the same for every row."""
    ranks = {len(b.shape(each.rows)) for each in several}
    others = [b.shape(arg) for arg in args if isinstance(arg, Ref)]
    return len(ranks) == 1 and all(len(s) < max(ranks) or (len(s) == max(ranks) and s[0] == 1) for s in others)


def apart(b: Builder, one: MaskedRows, dim: int) -> bool:
    """Whether a dim isn't the rows'."""
    return dim % len(b.shape(one.rows)) != 0


def refused(op: str, cause: str) -> TraceError:
    remedy = "compute all rows and leave out what doesn't count where they are summed: torch.where(mask, x, 0).sum()"
    return TraceError(f"{op} of x[mask]", cause, remedy)


def left_out(b: Builder, one: MaskedRows, like: Ref) -> Ref:
    """What is not kept, in front of the dims of a row."""
    dropped = b.emit("aten.bitwise_not.default", one.mask)
    return b.reshape(dropped, (*b.shape(one.mask), *(1 for _ in b.shape(like)[1:])))


def summed(b: Builder, one: MaskedRows, *, mean: bool) -> Ref:
    """The sum over all elements that are kept; of a mean the count is made before the first microbatch."""
    zeroed = b.emit("aten.masked_fill.Scalar", one.rows, left_out(b, one, one.rows), 0)
    total = b.emit("aten.sum.default", zeroed)
    if not mean:
        return total
    marks = b.emit("aten.mul.Tensor", b.cast(b.emit("aten.bitwise_not.default", one.mask), "int64"), IGNORED)
    count = b.emit("autoplan.count_valid", marks, IGNORED, type=TensorType((), "int64"), hint="kept_rows")
    each = math.prod(b.shape(one.rows)[1:])
    average = b.emit("aten.div.Tensor", total, count)
    return average if each == 1 else b.emit("aten.div.Tensor", average, each)
