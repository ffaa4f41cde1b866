"""Random operators as functions of numbers hashed from each element's place: ``autoplan.uniform`` (``global_random``).

So shards draw differently, replicas alike, and what is recomputed or resumed draws the same again. A shape to be
filled is a tensor of zeros whose places are drawn for. What draws in another way is refused (``convert.as_it_is``).
"""

import math
from collections.abc import Sequence

import torch

from autoplan.ir.graph import DType
from autoplan.trace.canonical_forms import Builder, Ref, form
from autoplan.trace.forms.tensor.sorting import order

WIDE = "float64"  # holds the 32 bits that are drawn


def uniform(b: Builder, x: Ref, number: int = 0) -> Ref:
    """From 0 to below 1, of x's shape and dtype. ``number`` tells several draws for one operator apart."""
    return b.emit("autoplan.uniform", x, number, type=b.type(x))


def like(b: Builder, x: Ref, dtype: DType | None) -> Ref:
    return x if dtype is None else b.cast(x, dtype.name)


@form("aten.rand_like.default")
def rand_like(b: Builder, x: Ref, dtype: DType | None = None) -> Ref:
    return uniform(b, like(b, x, dtype))


@form("aten.bernoulli.default")
def bernoulli(b: Builder, p: Ref) -> Ref:
    return b.cast(b.emit("aten.lt.Tensor", uniform(b, p), p), b.type(p).dtype)


@form("aten.bernoulli.p")
def bernoulli_p(b: Builder, x: Ref, p: float = 0.5) -> Ref:
    return b.cast(b.emit("aten.lt.Scalar", uniform(b, x), p), b.type(x).dtype)


@form("aten.uniform.default")
def uniform_between(b: Builder, x: Ref, start: float = 0.0, stop: float = 1.0) -> Ref:
    """In place of x, as ``uniform_`` fills it."""
    return b.emit("aten.add.Tensor", b.emit("aten.mul.Tensor", uniform(b, x), float(stop - start)), float(start))


@form("aten.exponential.default")
def exponential(b: Builder, x: Ref, rate: float = 1.0) -> Ref:
    """By the inverse of its distribution, -log(1 - u)/rate; above 0 as torch's: Gumbel's trick takes its logarithm."""
    drawn = b.emit("aten.log1p.default", b.emit("aten.neg.default", uniform(b, x)))
    least = torch.finfo(getattr(torch, b.type(x).dtype)).eps / 2
    positive = b.emit("aten.clamp_min.default", b.emit("aten.neg.default", drawn), least)
    return b.emit("aten.mul.Tensor", positive, 1.0 / rate)


@form("aten.randn_like.default")
def randn_like(b: Builder, x: Ref, dtype: DType | None = None) -> Ref:
    """Box and Muller 1958: sqrt(-2 log(1 - u)) cos(2 pi v)."""
    x = like(b, x, dtype)
    squared = b.emit("aten.mul.Tensor", b.emit("aten.log1p.default", b.emit("aten.neg.default", uniform(b, x))), -2.0)
    angle = b.emit("aten.mul.Tensor", uniform(b, x, 1), 2 * math.pi)
    return b.emit("aten.mul.Tensor", b.emit("aten.sqrt.default", squared), b.emit("aten.cos.default", angle))


@form("aten.rand.default")
def rand(b: Builder, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    return uniform(b, places(b, shape, dtype))


def places(b: Builder, shape: Sequence[int], dtype: DType | None) -> Ref:
    return b.full(shape, 0, dtype.name if dtype else "float32")


@form("aten.randn.default")
def randn(b: Builder, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    return randn_like(b, places(b, shape, dtype))


@form("aten.normal_functional.default", "aten.normal.default")
def normal(b: Builder, x: Ref, mean: float = 0.0, std: float = 1.0, **_: object) -> Ref:
    """In place of x, as ``normal_`` fills it."""
    return b.emit("aten.add.Tensor", b.emit("aten.mul.Tensor", randn_like(b, x), float(std)), float(mean))


@form("aten.normal.float_float")
def normal_of(
    b: Builder, mean: float, std: float, shape: Sequence[int], *, dtype: DType | None = None, **_: object
) -> Ref:
    return normal(b, places(b, shape, dtype), mean, std)


@form("aten.normal.float_Tensor", "aten.normal.Tensor_Tensor", "aten.normal.Tensor_float")
def normal_around(b: Builder, mean: Ref | float, std: Ref | float = 1.0, **_: object) -> Ref:
    like = b.emit("aten.add.Tensor", mean, std) if isinstance(mean, Ref) else b.emit("aten.add.Tensor", std, mean)
    return b.emit("aten.add.Tensor", b.emit("aten.mul.Tensor", randn_like(b, like), std), mean)


@form("aten.randint.default")
def randint(b: Builder, high: int, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    return randint_between(b, 0, high, shape, dtype=dtype)


@form("aten.randint.low")
def randint_between(
    b: Builder, low: int, high: int, shape: Sequence[int], *, dtype: DType | None = None, **_: object
) -> Ref:
    """Each number as likely as another, but for one part in 2^32/(high - low)."""
    drawn = b.emit("aten.mul.Tensor", uniform(b, b.full(shape, 0, WIDE)), high - low)
    whole = b.cast(b.emit("aten.floor.default", drawn), "int64")
    return b.cast(b.emit("aten.add.Tensor", whole, low) if low else whole, dtype.name if dtype else "int64")


@form("aten.randint_like.default")
def randint_like(b: Builder, x: Ref, high: int, *, dtype: DType | None = None, **_: object) -> Ref:
    return randint_between(b, 0, high, b.shape(x), dtype=dtype or DType(b.type(x).dtype))


@form("aten.randint_like.low_dtype")
def randint_like_between(
    b: Builder, x: Ref, low: int, high: int, *, dtype: DType | None = None, **_: object
) -> Ref:
    return randint_between(b, low, high, b.shape(x), dtype=dtype or DType(b.type(x).dtype))


@form("aten.randperm.default")
def randperm(b: Builder, count: int, *, dtype: DType | None = None, **_: object) -> Ref:
    """The order of as many drawn numbers."""
    drawn = order(b, uniform(b, b.full((count,), 0, WIDE)), 0, False)
    return b.cast(drawn, dtype.name if dtype else "int64")
