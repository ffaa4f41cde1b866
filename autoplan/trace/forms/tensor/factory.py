"""Tensors made from sizes: an arange or a full of a given dtype; where they live is the runtime's."""

from collections.abc import Sequence
from typing import Any

from autoplan.ir.graph import DType
from autoplan.trace.canonical_forms import Builder, Ref, form


@form("aten.arange.default")
def arange(b: Builder, stop: float, *, dtype: DType | None = None, **_: object) -> Ref:
    return arange_step(b, 0, stop, 1, dtype=dtype)


@form("aten.arange.start")
def arange_start(b: Builder, start: float, stop: float, *, dtype: DType | None = None, **_: object) -> Ref:
    return arange_step(b, start, stop, 1, dtype=dtype)


@form("aten.arange.start_step")
def arange_step(
    b: Builder, start: float, stop: float, step: float = 1, *, dtype: DType | None = None, **_: object
) -> Ref:
    if dtype is None and any(isinstance(bound, float) for bound in (start, stop, step)):
        dtype = DType("float32")  # said, so that it follows where the model is computed in another precision
    kwargs = () if dtype is None else (("dtype", dtype),)
    if step != 1:
        return b.emit("aten.arange.start_step", start, stop, step, kwargs=kwargs, hint="arange")
    if start != 0:
        return b.emit("aten.arange.start", start, stop, kwargs=kwargs)
    return b.emit("aten.arange.default", stop, kwargs=kwargs)


@form("aten.full.default")
def full(b: Builder, shape: Sequence[int], value: float, *, dtype: DType | None = None, **_: object) -> Ref:
    if dtype is None:
        dtype = DType({bool: "bool", int: "int64"}.get(type(value), "float32"))
    return b.full(shape, value, dtype.name)


@form("aten.zeros.default", "aten.empty.memory_format")
def zeros(b: Builder, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    """Of an empty one, too: what it holds is whatever lay there."""
    return b.full(shape, 0, dtype.name if dtype else "float32")


@form("aten.ones.default")
def ones(b: Builder, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    return b.full(shape, 1, dtype.name if dtype else "float32")


@form("aten.scalar_tensor.default")
def scalar_tensor(b: Builder, value: float, *, dtype: DType | None = None, **_: object) -> Ref:
    return b.full((), value, dtype.name if dtype else "float32")


@form("aten.new_ones.default")
def new_ones(b: Builder, x: Ref, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    return b.full(shape, 1, dtype.name if dtype else b.type(x).dtype)


@form("aten.new_zeros.default", "aten.new_empty.default")
def new_zeros(b: Builder, x: Ref, shape: Sequence[int], *, dtype: DType | None = None, **_: object) -> Ref:
    return b.full(shape, 0, dtype.name if dtype else b.type(x).dtype)


@form("aten.new_full.default")
def new_full(b: Builder, x: Ref, shape: Sequence[int], value: float, *, dtype: DType | None = None, **_: object) -> Ref:
    return b.full(shape, value, dtype.name if dtype else b.type(x).dtype)


@form("aten.full_like.default")
def full_like(b: Builder, x: Ref, value: float, *, dtype: DType | None = None, **_: object) -> Ref:
    return b.full(b.shape(x), value, dtype.name if dtype else b.type(x).dtype)


@form("aten.ones_like.default")
def ones_like(b: Builder, x: Ref, **kwargs: Any) -> Ref:
    return full_like(b, x, 1, **kwargs)


@form("aten.zeros_like.default", "aten.empty_like.default")
def zeros_like(b: Builder, x: Ref, **kwargs: Any) -> Ref:
    return full_like(b, x, 0, **kwargs)


@form("aten.pad.default")
def pad(b: Builder, x: Ref, amounts: Sequence[int], mode: str = "constant", value: float | None = None) -> Ref:
    if mode != "constant":
        return b.emit("aten.pad.default", x, tuple(amounts), mode)
    number = value or 0
    return b.emit(
        "aten.constant_pad_nd.default", x, tuple(amounts), number if b.type(x).floating else int(number), hint="pad"
    )
