"""Reductions: dims counted from the front, none given means all."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.graph import DType
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
