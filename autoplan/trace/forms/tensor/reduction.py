"""Reductions: dims counted from the front, none given means all."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import DType
from autoplan.trace.table import Builder, Ref, form, positive, positives


def to_dtype(b: Builder, x: Ref, dtype: DType | None) -> Ref:
    return x if dtype is None else b.cast(x, dtype.name)


@form("aten.mean.dim")
def mean(b: Builder, x: Ref, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: DType | None = None) -> Ref:
    x = to_dtype(b, x, dtype)
    return b.emit("aten.mean.dim", x, positives(dims, len(b.shape(x))), keepdim)


@form("aten.mean.default")
def mean_all(b: Builder, x: Ref, *, dtype: DType | None = None) -> Ref:
    return b.emit("aten.mean.default", to_dtype(b, x, dtype))


@form("aten.sum.dim_IntList")
def sum_(b: Builder, x: Ref, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: DType | None = None) -> Ref:
    x = to_dtype(b, x, dtype)
    return b.emit("aten.sum.dim_IntList", x, positives(dims, len(b.shape(x))), keepdim)


@form("aten.sum.default")
def sum_all(b: Builder, x: Ref, *, dtype: DType | None = None) -> Ref:
    return b.emit("aten.sum.default", to_dtype(b, x, dtype))


@form("aten.amax.default")
def amax(b: Builder, x: Ref, dims: Sequence[int] = (), keepdim: bool = False) -> Ref:
    return b.emit("aten.amax.default", x, positives(dims, len(b.shape(x))), keepdim)


@form("aten.softmax.int", "aten._softmax.default")
def softmax(b: Builder, x: Ref, dim: int, dtype: DType | bool | None = None) -> Ref:
    x = to_dtype(b, x, dtype if isinstance(dtype, DType) else None)
    return b.emit("aten.softmax.int", x, positive(dim, len(b.shape(x))))


@form("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(b: Builder, x: Ref, dim: int, dtype: DType | bool | None = None) -> Ref:
    x = to_dtype(b, x, dtype if isinstance(dtype, DType) else None)
    return b.emit("aten.log_softmax.int", x, positive(dim, len(b.shape(x))))


@form("aten.cumsum.default")
def cumsum(b: Builder, x: Ref, dim: int, *, dtype: DType | None = None) -> Ref:
    return b.emit("aten.cumsum.default", to_dtype(b, x, dtype), positive(dim, len(b.shape(x))))


@form("aten.linalg_vector_norm.default")
def vector_norm(
    b: Builder, x: Ref, order: float = 2, dims: Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Ref:  # fmt: skip
    x = to_dtype(b, x, dtype)
    return b.emit("aten.linalg_vector_norm.default", x, order, positives(dims, len(b.shape(x))), bool(keepdim))


@form("aten.argmax.default")
def argmax(b: Builder, x: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
    return b.emit("aten.argmax.default", x, dim if dim is None else positive(dim, len(b.shape(x))), bool(keepdim))


@form("aten.argmin.default")
def argmin(b: Builder, x: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
    return b.emit("aten.argmin.default", x, dim if dim is None else positive(dim, len(b.shape(x))), bool(keepdim))


@form("aten.var.correction")
def variance(
    b: Builder, x: Ref, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Ref:
    kwargs = (("correction", 1 if correction is None else correction), ("keepdim", bool(keepdim)))
    return b.emit("aten.var.correction", x, positives(dims, len(b.shape(x))), kwargs=kwargs)


@form("aten.var_mean.correction")
def variance_and_mean(
    b: Builder, x: Ref, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Ref, Ref]:
    found = variance(b, x, dims, correction=correction, keepdim=keepdim)
    return found, mean(b, x, dims, keepdim)


@form("aten.std.correction")
def deviation(
    b: Builder, x: Ref, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Ref:
    return b.emit("aten.sqrt.default", variance(b, x, dims, correction=correction, keepdim=keepdim))


@form("aten.std_mean.correction")
def deviation_and_mean(
    b: Builder, x: Ref, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Ref, Ref]:
    found = deviation(b, x, dims, correction=correction, keepdim=keepdim)
    return found, mean(b, x, dims, keepdim)


@form("aten.cumprod.default")
def cumprod(b: Builder, x: Ref, dim: int, *, dtype: DType | None = None) -> Ref:
    return b.emit("aten.cumprod.default", to_dtype(b, x, dtype), positive(dim, len(b.shape(x))))


@form("aten.logcumsumexp.default")
def logcumsumexp(b: Builder, x: Ref, dim: int) -> Ref:
    return b.emit("aten.logcumsumexp.default", x, positive(dim, len(b.shape(x))))


@form("aten.prod.dim_int")
def product(b: Builder, x: Ref, dim: int, keepdim: bool = False, *, dtype: DType | None = None) -> Ref:
    return b.emit("aten.prod.dim_int", to_dtype(b, x, dtype), positive(dim, len(b.shape(x))), bool(keepdim))
