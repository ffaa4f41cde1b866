"""Reductions: dims counted from the front, none given means all."""

from collections.abc import Sequence

from autoplan.ir.graph import DType
from autoplan.trace.canonical_forms import Builder, Ref, form, positive, positives


def to_dtype(b: Builder, x: Ref, dtype: DType | None) -> Ref:
    return x if dtype is None else b.cast(x, dtype.name)


@form("aten.mean.dim")
def mean(b: Builder, x: Ref, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: DType | None = None) -> Ref:
    x = to_dtype(b, x, dtype)
    return b.emit("aten.mean.dim", x, positives(dims, len(b.shape(x))), keepdim)


def over_all(op: str) -> None:
    @form(op)
    def reduced(b: Builder, x: Ref, *, dtype: DType | None = None) -> Ref:
        return b.emit(op, to_dtype(b, x, dtype))


def normalising(op: str, *others: str) -> None:
    @form(op, *others)
    def normalised(b: Builder, x: Ref, dim: int, dtype: DType | bool | None = None) -> Ref:
        x = to_dtype(b, x, dtype if isinstance(dtype, DType) else None)
        return b.emit(op, x, positive(dim, len(b.shape(x))))


def scanning(op: str) -> None:
    @form(op)
    def scanned(b: Builder, x: Ref, dim: int, *, dtype: DType | None = None) -> Ref:
        return b.emit(op, to_dtype(b, x, dtype), positive(dim, len(b.shape(x))))


def choosing(op: str) -> None:
    @form(op)
    def chosen(b: Builder, x: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
        return b.emit(op, x, dim if dim is None else positive(dim, len(b.shape(x))), bool(keepdim))


for _op in ("aten.mean.default", "aten.sum.default"):
    over_all(_op)
normalising("aten.softmax.int", "aten._softmax.default")
normalising("aten.log_softmax.int", "aten._log_softmax.default")
for _op in ("aten.cumsum.default", "aten.cumprod.default", "aten.logcumsumexp.default"):
    scanning(_op)
for _op in ("aten.argmax.default", "aten.argmin.default"):
    choosing(_op)


@form("aten.sum.dim_IntList")
def sum_(b: Builder, x: Ref, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: DType | None = None) -> Ref:
    x = to_dtype(b, x, dtype)
    return b.emit("aten.sum.dim_IntList", x, positives(dims, len(b.shape(x))), keepdim)


@form("aten.amax.default")
def amax(b: Builder, x: Ref, dims: Sequence[int] = (), keepdim: bool = False) -> Ref:
    return b.emit("aten.amax.default", x, positives(dims, len(b.shape(x))), keepdim)


@form("aten.linalg_vector_norm.default")
def vector_norm(
    b: Builder, x: Ref, order: float = 2, dims: Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Ref:  # fmt: skip
    x = to_dtype(b, x, dtype)
    return b.emit("aten.linalg_vector_norm.default", x, order, positives(dims, len(b.shape(x))), bool(keepdim))


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


@form("aten.prod.dim_int")
def product(b: Builder, x: Ref, dim: int, keepdim: bool = False, *, dtype: DType | None = None) -> Ref:
    return b.emit("aten.prod.dim_int", to_dtype(b, x, dtype), positive(dim, len(b.shape(x))), bool(keepdim))
