"""Orders: whole along the dim that is sorted, split along the others. Values are gathered by what these give."""

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, broadcast, letters, rule


@rule("aten.argsort.stable")
def argsort(x: TensorType, *, stable: bool, dim: int = -1, descending: bool = False) -> Rule:
    return Rule(f"{letters(x)} -> {letters(x)}", whole=f"d{dim % len(x.shape)}" if x.shape else frozenset())


@rule("aten.bucketize.Tensor")
def bucketize(x: TensorType, boundaries: TensorType, *, out_int32: bool = False, right: bool = False) -> Rule:
    return Rule(f"{letters(x)}, w -> {letters(x)}", whole="w")


@rule("aten.searchsorted.Tensor")
def searchsorted(ordered: TensorType, x: TensorType, **said: object) -> Rule:
    """One row of boundaries for all, or a row for each row of x."""
    rows = len(ordered.shape) - 1
    last = len(x.shape) - 1
    if rows == 0:
        return Rule(f"w, {letters(x)} -> {letters(x)}", whole="w")
    lead = broadcast(TensorType(ordered.shape[:-1], ordered.dtype), x.shape[:last])
    return Rule(f"{lead} w, {letters(x)} -> {letters(x)}", whole="w")


@rule("aten.histc.default")
def histogram(x: TensorType, bins: int = 100, least: float = 0, greatest: float = 0) -> Rule:
    """Counts add up where the bounds are given; else they are those of all values."""
    given = least != greatest
    return Rule(f"{letters(x)} -> n", whole=frozenset({"n"} if given else {"n", *letters(x).replace("[]", "").split()}))
