"""Orders: where the values stand, through which no gradient goes, and the values gathered from there."""

import math

from autoplan.ir.graph import TensorType
from autoplan.trace.canonical_forms import Builder, Ref, form, positive
from autoplan.trace.forms.nn.experts import picked, topk


def order(b: Builder, x: Ref, dim: int, descending: bool) -> Ref:
    """Equal values in the order in which they come, whether it was asked for or not."""
    kwargs = (("stable", True), ("dim", positive(dim, len(b.shape(x)))), ("descending", bool(descending)))
    return b.emit("aten.argsort.stable", x, kwargs=kwargs)


@form("aten.sort.default", "aten.sort.stable")
def sort(b: Builder, x: Ref, dim: int = -1, descending: bool = False, **_: object) -> tuple[Ref, Ref]:
    index = order(b, x, dim, descending)
    return b.emit("aten.gather.default", x, positive(dim, len(b.shape(x))), index, hint="sorted"), index


@form("aten.argsort.default", "aten.argsort.stable")
def argsort(b: Builder, x: Ref, dim: int = -1, descending: bool = False, **_: object) -> Ref:
    return order(b, x, dim, descending)


@form("aten.msort.default")
def msort(b: Builder, x: Ref) -> Ref:
    return sort(b, x, 0)[0]


@form("aten.kthvalue.default")
def kthvalue(b: Builder, x: Ref, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Ref, Ref]:
    dim = positive(dim, len(b.shape(x)))
    index = b.slice(order(b, x, dim, False), dim, k - 1, k)
    return picked(b, b.emit("aten.gather.default", x, dim, index), index, dim, keepdim)


@form("aten.median.dim")
def median(b: Builder, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
    """The lower one of an even number."""
    return kthvalue(b, x, (b.shape(x)[positive(dim, len(b.shape(x)))] + 1) // 2, dim, keepdim)


@form("aten.median.default")
def median_of_all(b: Builder, x: Ref) -> Ref:
    return median(b, b.reshape(x, (math.prod(b.shape(x)),)), 0)[0]


@form("aten.min.dim")
def min_along(b: Builder, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
    dim = positive(dim, len(b.shape(x)))
    return picked(b, *topk(b, x, 1, dim, False), dim, keepdim)


@form("aten.aminmax.default")
def aminmax(b: Builder, x: Ref, *, dim: int | None = None, keepdim: bool = False) -> tuple[Ref, Ref]:
    rank = len(b.shape(x))
    dims = tuple(range(rank)) if dim is None else (positive(dim, rank),)
    return b.emit("aten.amin.default", x, dims, keepdim), b.emit("aten.amax.default", x, dims, keepdim)


def running(op: str, largest: bool) -> None:
    @form(op)
    def extreme(b: Builder, x: Ref, dim: int) -> tuple[Ref, Ref]:
        dim = positive(dim, len(b.shape(x)))
        kind = TensorType(b.shape(x), "int64")
        index = b.emit("autoplan.running_extreme", x, dim, largest, type=kind, hint="running")
        return b.emit("aten.gather.default", x, dim, index), index


running("aten.cummax.default", True)
running("aten.cummin.default", False)
