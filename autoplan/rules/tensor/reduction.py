"""Reductions: what is reduced splits into partial results."""

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, broadcast, broadcast_shape, letters, rule

PASSES = ((0,),)


def reduced(x: TensorType, dims: tuple[int, ...], keepdim: bool) -> str:
    """The notation of a reduction over some dims, over all of them where none is named."""
    over = {d % len(x.shape) for d in dims} or set(range(len(x.shape)))
    left = [f"d{i}" if i not in over else "1" for i in range(len(x.shape)) if i not in over or keepdim]
    return f"{letters(x)} -> {' '.join(left) or '[]'}"


@rule("aten.sum.dim_IntList", "aten.sum.default")
def sum_dims(x: TensorType, dims: tuple[int, ...] | None = None, keepdim: bool = False, dtype: object = None) -> Rule:
    return Rule(reduced(x, dims or (), keepdim), linear=PASSES)


@rule("aten.mean.dim", "aten.mean.default")
def mean_dims(x: TensorType, dims: tuple[int, ...] | None = None, keepdim: bool = False, dtype: object = None) -> Rule:
    """The mean over a split dim is the sum of the ranks' means, each divided by the number of ranks."""
    return Rule(reduced(x, dims or (), keepdim), linear=PASSES, reduce="mean")


@rule("aten.amax.default")
def amax(x: TensorType, dims: tuple[int, ...] = (), keepdim: bool = False) -> Rule:
    return Rule(reduced(x, dims, keepdim), reduce="max", saved=(0, "out"))


@rule("aten.amin.default", "aten.logsumexp.default")
def amin(x: TensorType, dims: tuple[int, ...] = (), keepdim: bool = False) -> Rule:
    return whole_reduction(x, dims, keepdim, saved=(0, "out"))


@rule("aten.any.dim", "aten.all.dim", "aten.argmax.default", "aten.argmin.default")
def choice(x: TensorType, dim: int | None = None, keepdim: bool = False) -> Rule:
    return whole_reduction(x, () if dim is None else (dim,), keepdim)


@rule("aten.any.default", "aten.all.default", "aten.max.default", "aten.min.default")
def choice_all(x: TensorType) -> Rule:
    return whole_reduction(x, (), False, saved=(0, "out") if x.floating else ())


@rule("aten.var.correction")
def variance(
    x: TensorType, dims: tuple[int, ...] | None = None, correction: float | None = None, keepdim: bool = False
) -> Rule:
    return whole_reduction(x, dims or (), keepdim, saved=(0,))


@rule("aten.prod.dim_int", "aten.prod.default")
def product(x: TensorType, dim: int | None = None, keepdim: bool = False, dtype: object = None) -> Rule:
    return whole_reduction(x, () if dim is None else (dim,), keepdim, saved=(0, "out"))


@rule("aten.linalg_vector_norm.default")
def vector_norm(
    x: TensorType, order: float = 2, dims: tuple[int, ...] | None = None, keepdim: bool = False, dtype: object = None
) -> Rule:
    return whole_reduction(x, dims or (), keepdim, saved=(0, "out"))


@rule("aten.count_nonzero.dim_IntList")
def count_nonzero(x: TensorType, dims: tuple[int, ...]) -> Rule:
    return Rule(reduced(x, dims, False))


@rule("aten.count_nonzero.default")
def count_nonzero_all(x: TensorType, dim: int | None = None) -> Rule:
    return Rule(reduced(x, () if dim is None else (dim,), False))


@rule("aten.any.dims", "aten.all.dims")
def choice_of_dims(x: TensorType, dims: tuple[int, ...] | None = None, keepdim: bool = False) -> Rule:
    return whole_reduction(x, dims or (), keepdim)


def whole_reduction(x: TensorType, dims: tuple[int, ...], keepdim: bool, saved: tuple[int | str, ...] = ()) -> Rule:
    """A reduction whose parts can't be put together by a sum: what it reduces is whole."""
    over = {d % len(x.shape) for d in dims} or set(range(len(x.shape)))
    return Rule(reduced(x, dims, keepdim), whole=frozenset(f"d{i}" for i in over), saved=saved)


@rule("aten._cdist_forward.default")
def distances(x: TensorType, y: TensorType, p: float, mode: int | None = None) -> Rule:
    """x [b.., n, w], y [b.., m, w] -> [b.., n, m]: each row of the one from each of the other."""
    shape = broadcast_shape(x.shape[:-2], y.shape[:-2])
    lead = [f"{broadcast(TensorType(t.shape[:-2], t.dtype), shape)} ".replace("[] ", "") for t in (x, y)]
    return Rule(
        f"{lead[0]}n w, {lead[1]}m w -> {letters(len(shape))} n m".replace("[] ", ""), whole="w", saved=(0, 1, "out")
    )
