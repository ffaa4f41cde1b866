"""Arithmetic: scalars stay Python numbers, factors of add and sub are multiplications of their own."""

from autoplan.ir.graph import DType
from autoplan.trace.canonical_forms import Builder, Ref, form, renamed
from autoplan.trace.forms.nn.idioms import gelu_tanh, rms_norm


def unchanged(b: Builder, x: Ref, number: object, neutral: int) -> bool:
    """Whether an operation with this number gives back the tensor: neutral, and it doesn't promote the dtype."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != neutral:
        return False
    return b.type(x).floating or (isinstance(number, int) and b.type(x).dtype != "bool")


def scaled(b: Builder, y: Ref | float, alpha: float) -> Ref | float:
    if alpha == 1:
        return y
    return b.emit("aten.mul.Tensor", y, alpha) if isinstance(y, Ref) else y * alpha


def signed(b: Builder, op: str, x: Ref, y: Ref | float, alpha: float) -> Ref:
    y = scaled(b, y, alpha)
    return x if unchanged(b, x, y, 0) else b.emit(op, x, y)


def is_zero(b: Builder, x: Ref) -> bool:
    made = b.maker(x, "aten.full.default")
    return made is not None and made.args[1] == 0


@form("aten.add.Tensor", "aten.add.Scalar")
def add(b: Builder, x: Ref, y: Ref | float, alpha: float = 1) -> Ref:
    if isinstance(y, Ref) and alpha == 1 and b.type(x) == b.type(y):
        if is_zero(b, x):  # what a sum over layers begins with
            return y
        if is_zero(b, y):
            return x
    return signed(b, "aten.add.Tensor", x, y, alpha)


@form("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b: Builder, x: Ref, y: Ref | float, alpha: float = 1) -> Ref:
    return signed(b, "aten.sub.Tensor", x, y, alpha)


@form("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(b: Builder, x: Ref, y: Ref | float, alpha: float = 1) -> Ref:
    if isinstance(y, Ref):
        return sub(b, y, x, alpha)
    return add(b, b.emit("aten.mul.Tensor", x, -alpha) if alpha != 1 else b.emit("aten.neg.default", x), y)


@form("aten.mul.Tensor", "aten.mul.Scalar")
def mul(b: Builder, x: Ref, y: Ref | float) -> Ref:
    """Some products are the end of an idiom for one operator."""
    if unchanged(b, x, y, 1):
        return x
    whole = (rms_norm(b, x, y) or gelu_tanh(b, x, y)) if isinstance(y, Ref) else None
    return whole or b.emit("aten.mul.Tensor", x, y)


@form("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(b: Builder, x: Ref, y: Ref | float) -> Ref:
    return x if unchanged(b, x, y, 1) and b.type(x).floating else b.emit("aten.div.Tensor", x, y)


renamed("aten.minimum.default", "aten.min.other")
renamed("aten.maximum.default", "aten.max.other")
renamed("aten.bitwise_and.Tensor", "aten.__and__.Tensor", "aten.logical_and.default")
renamed("aten.bitwise_or.Tensor", "aten.__or__.Tensor", "aten.logical_or.default")
renamed("aten.where.ScalarOther", "aten.where.ScalarOther")
renamed("aten.where.ScalarSelf", "aten.where.ScalarSelf")


@form("aten.square.default")
def square(b: Builder, x: Ref) -> Ref:
    return b.emit("aten.pow.Tensor_Scalar", x, 2)


@form("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other")
def cast(b: Builder, x: Ref, *args: object, **kwargs: object) -> Ref:
    """Casts alone matter: where a tensor lives is the runtime's."""
    other = next((a for a in args if isinstance(a, Ref)), None)
    if other is not None:
        return b.cast(x, b.type(other).dtype)
    dtype = next((a for a in (*args, kwargs.get("dtype")) if isinstance(a, DType)), None)
    return x if dtype is None else b.cast(x, dtype.name)


@form("aten.type_as.default")
def type_as(b: Builder, x: Ref, other: Ref) -> Ref:
    return b.cast(x, b.type(other).dtype)


@form("aten.native_dropout.default")
def native_dropout(b: Builder, x: Ref, p: float, train: bool | None = True) -> tuple[Ref | None, ...]:
    return dropout(b, x, p, train is not False), None


@form("aten.dropout.default")
def dropout(b: Builder, x: Ref, p: float, train: bool) -> Ref:
    return b.emit("autoplan.dropout", x, p, type=b.type(x)) if train and p > 0 else x


@form("aten.feature_dropout.default")
def feature_dropout(b: Builder, x: Ref, p: float, train: bool) -> Ref:
    """Whole channels of [b, c, ..]: a factor for each, which is dropped in place of its elements."""
    if not train or p == 0:
        return x
    factor = x
    for dim in range(2, len(b.shape(x))):
        factor = b.slice(factor, dim, 0, 1)
    return b.emit("aten.mul.Tensor", x, dropout(b, b.emit("aten.ones_like.default", factor), p, train))
