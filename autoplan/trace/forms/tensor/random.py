"""Random operators as functions of numbers hashed from each element's place: ``autoplan.uniform`` (runtime.ops.random).

So shards draw differently, replicas alike, and what is recomputed or resumed draws the same again. What draws in
another way, from no tensor or whole rows at a time, is refused (``convert.as_it_is``).
"""

import math

from autoplan.ir.graph import DType
from autoplan.trace.table import Builder, Ref, form


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
    """By the inverse of its distribution, -log(1 - u)/rate."""
    drawn = b.emit("aten.log1p.default", b.emit("aten.neg.default", uniform(b, x)))
    return b.emit("aten.mul.Tensor", drawn, -1.0 / rate)


@form("aten.randn_like.default")
def randn_like(b: Builder, x: Ref, dtype: DType | None = None) -> Ref:
    """Box and Muller 1958: sqrt(-2 log(1 - u)) cos(2 pi v)."""
    x = like(b, x, dtype)
    squared = b.emit("aten.mul.Tensor", b.emit("aten.log1p.default", b.emit("aten.neg.default", uniform(b, x))), -2.0)
    angle = b.emit("aten.mul.Tensor", uniform(b, x, 1), 2 * math.pi)
    return b.emit("aten.mul.Tensor", b.emit("aten.sqrt.default", squared), b.emit("aten.cos.default", angle))
