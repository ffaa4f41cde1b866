"""Operators that work element by element, with broadcasting: one table says what passes partial sums and what is kept.

A partial sum passes only where the operator is linear: neg, a product with something whole, a sum of partial sums. A
scalar that is added would be added once on each rank, so ``x + 1`` isn't linear.
"""

from dataclasses import dataclass

from autoplan.ir.graph import Argument, DType, TensorType
from autoplan.rules.registry import Rule, broadcast, broadcast_shape, letters, rule


@dataclass(frozen=True)
class Elementwise:
    """linear  groups as in ``Rule``, over tensor operands, when every operand is a tensor
    scaling  positions among the arguments in which the operator is linear when the other argument is a number
    saved    what autograd keeps when every operand is a tensor; with a number in place of the second, see ``saved_of``
    """

    linear: tuple[tuple[int, ...], ...] = ()
    scaling: tuple[int, ...] = ()
    saved: tuple[int | str, ...] = ()


MASK_BYTES = 1.0  # of an element, where dropout keeps its mask
INPUT = Elementwise(saved=(0,))
OUTPUT = Elementwise(saved=("out",))
NOTHING = Elementwise()
PASSES = Elementwise(linear=((0,),))
BOTH = Elementwise(saved=(0, 1))

TABLE = {
    "aten.neg.default": PASSES,
    "aten.clone.default": PASSES,
    "aten.detach.default": PASSES,
    "aten.relu.default": OUTPUT,
    "aten.sigmoid.default": OUTPUT,
    "aten.tanh.default": OUTPUT,
    "aten.exp.default": OUTPUT,
    "aten.sqrt.default": OUTPUT,
    "aten.rsqrt.default": OUTPUT,
    "aten.reciprocal.default": OUTPUT,
    "aten.gelu.default": INPUT,
    "aten.silu.default": INPUT,
    "aten.mish.default": INPUT,
    "aten.elu.default": INPUT,
    "aten.leaky_relu.default": INPUT,
    "aten.softplus.default": INPUT,
    "aten.hardswish.default": INPUT,
    "aten.hardsigmoid.default": INPUT,
    "aten.hardtanh.default": INPUT,
    "aten.abs.default": INPUT,
    "aten.square.default": INPUT,
    "aten.log.default": INPUT,
    "aten.log1p.default": INPUT,
    "aten.sin.default": INPUT,
    "aten.cos.default": INPUT,
    "aten.erf.default": INPUT,
    "aten.clamp.default": INPUT,
    "aten.clamp_min.default": INPUT,
    "aten.clamp_max.default": INPUT,
    "aten.pow.Tensor_Scalar": INPUT,
    "aten.pow.Scalar": OUTPUT,
    "aten.pow.Tensor_Tensor": Elementwise(saved=(0, 1, "out")),
    "aten.floor.default": NOTHING,
    "aten.sign.default": NOTHING,
    "aten.add.Tensor": Elementwise(linear=((0, 1),)),
    "aten.sub.Tensor": Elementwise(linear=((0, 1),)),
    "aten.rsub.Scalar": NOTHING,
    "aten.mul.Tensor": Elementwise(linear=((0,), (1,)), scaling=(0, 1), saved=(0, 1)),
    "aten.div.Tensor": Elementwise(linear=((0,),), scaling=(0,), saved=(0, 1)),
    "aten.div.Tensor_mode": NOTHING,
    "aten.floor_divide.default": NOTHING,
    "aten.remainder.Scalar": NOTHING,
    "aten.remainder.Tensor": NOTHING,
    "aten.maximum.default": BOTH,
    "aten.minimum.default": BOTH,
    "aten.logical_not.default": NOTHING,
    "aten.bitwise_not.default": NOTHING,
    "aten.isnan.default": NOTHING,
    "aten.isinf.default": NOTHING,
    "aten.lerp.Scalar": Elementwise(linear=((0, 1),)),
    "aten.lerp.Tensor": Elementwise(linear=((0, 1),), saved=(0, 1, 2)),
    "aten.deg2rad.default": PASSES,
    "aten.rad2deg.default": PASSES,
    "aten.exp2.default": OUTPUT,
    "aten.expm1.default": OUTPUT,
    "aten.clamp.Tensor": Elementwise(saved=(0, 1, 2)),
    "aten.clamp_min.Tensor": BOTH,
    "aten.clamp_max.Tensor": BOTH,
    "aten.ldexp.Tensor": BOTH,
    "aten.xlogy.Tensor": BOTH,
    "aten.copysign.Tensor": BOTH,
    "aten.copysign.Scalar": INPUT,
    "aten.fmod.Scalar": NOTHING,
    "aten.fmod.Tensor": BOTH,
    "aten.polygamma.default": INPUT,
    "aten._prelu_kernel.default": BOTH,
    "aten.smooth_l1_loss.default": BOTH,
    "aten.huber_loss.default": BOTH,
    "aten.binary_cross_entropy.default": Elementwise(saved=(0, 1, 2)),
    "aten.binary_cross_entropy_with_logits.default": Elementwise(saved=(0, 1, 2, 3)),
} | {
    f"aten.{name}.default": INPUT
    for name in (
        "acos acosh angle asin asinh atan atanh celu cosh digamma erfc erfinv frac hardshrink i0 lgamma log10 log2 "
        "log_sigmoid nan_to_num relu6 selu sinc sinh softshrink special_erfcx special_i1 special_i0e special_i1e "
        "special_ndtri tan threshold"
    ).split()
} | {
    f"aten.{name}.default": BOTH
    for name in "atan2 fmax fmin hypot igamma igammac logaddexp logaddexp2 special_zeta".split()
} | {
    f"aten.{name}.default": NOTHING
    for name in "ceil round trunc sgn signbit gcd lcm heaviside nextafter special_bessel_j0 special_bessel_j1".split()
} | {
    f"aten.{name}.{overload}": NOTHING
    for name in ("bitwise_left_shift", "bitwise_right_shift") for overload in ("Tensor", "Tensor_Scalar")
} | {
    f"aten.__{name}__.{overload}": NOTHING for name in ("lshift", "rshift") for overload in ("Tensor", "Scalar")
} | {
    f"aten.{name}.{overload}": NOTHING
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__")
    for overload in ("Tensor", "Scalar")
} | {
    f"aten.logical_{name}.default": NOTHING for name in ("and", "or", "xor")
}  # fmt: skip


def elementwise(entry: Elementwise, *args: Argument) -> Rule:
    """The rule of an operator of the table; whatever is not a tensor is a number or a flag.

    With fewer tensors than the operator may take, some being left out or numbers, what is kept names no more of them.
    """
    tensors = [a for a in args if isinstance(a, TensorType)]
    if len(tensors) == 1:
        linear = entry.linear if len(args) == 1 else ()
        if any(isinstance(args[p], TensorType) for p in entry.scaling if len(args) == 2):
            linear = ((0,),)
        return Rule(aligned(*tensors), linear=linear, saved=saved_of(entry))
    saved = tuple(s for s in entry.saved if isinstance(s, str) or s < len(tensors))
    return Rule(aligned(*tensors), linear=entry.linear, saved=saved)


def saved_of(entry: Elementwise) -> tuple[int | str, ...]:
    """What is kept with one tensor: a product with a number keeps nothing, any other operator what it always does."""
    return () if entry.scaling else tuple(s for s in entry.saved if isinstance(s, str) or s == 0)


def aligned(*tensors: TensorType) -> str:
    """The notation of an elementwise operator, operands that are smaller broadcast."""
    shape = broadcast_shape(*(x.shape for x in tensors))
    return f"{', '.join(broadcast(x, shape) for x in tensors)} -> {letters(len(shape))}"


def register(op: str, entry: Elementwise) -> None:
    @rule(op)
    def entry_rule(*args: Argument, **flags: Argument) -> Rule:
        return elementwise(entry, *args, *(flag for flag in flags.values() if isinstance(flag, TensorType)))


for _op, _entry in TABLE.items():
    register(_op, _entry)


@rule("aten.to.dtype")
def cast(x: TensorType, dtype: DType) -> Rule:
    """Linear between floating types, up to rounding, and from integers; not where it truncates."""
    target = TensorType((), dtype.name)
    widens = target.floating or (not x.floating and dtype.name in ("int64", "int32") and x.dtype != "bool")
    return Rule(aligned(x), linear=((0,),) if widens else ())


@rule("aten.where.self")
def where(condition: TensorType, x: TensorType, y: TensorType) -> Rule:
    return Rule(aligned(condition, x, y), linear=((1, 2),), saved=(0,))


@rule("aten.where.ScalarOther")
def where_scalar_other(condition: TensorType, x: TensorType, y: float) -> Rule:
    return Rule(aligned(condition, x), linear=((1,),) if y == 0 else (), saved=(0,))


@rule("aten.where.ScalarSelf")
def where_scalar_self(condition: TensorType, x: float, y: TensorType) -> Rule:
    return Rule(aligned(condition, y), linear=((1,),) if x == 0 else (), saved=(0,))


@rule("aten.where.Scalar")
def where_scalars(condition: TensorType, x: float, y: float) -> Rule:
    return Rule(aligned(condition))


@rule("aten.masked_fill.Scalar")
def masked_fill(x: TensorType, mask: TensorType, value: float) -> Rule:
    return Rule(aligned(x, mask), linear=((0,),) if value == 0 else (), saved=(1,))


@rule("aten.masked_fill.Tensor")
def masked_fill_tensor(x: TensorType, mask: TensorType, value: TensorType) -> Rule:
    return Rule(aligned(x, mask, value), linear=((0, 2),), saved=(1,))


@rule("autoplan.uniform")
def uniform(x: TensorType, number: int) -> Rule:
    """Numbers for x's places, whatever its values."""
    return Rule(aligned(x))


@rule("autoplan.dropout")
def dropout(x: TensorType, p: float, by_rank: bool = False) -> Rule:
    """Nothing is kept: the mask is hashed anew in the backward. What a rank draws is: in eager mode in a byte each."""
    kept = MASK_BYTES if by_rank else 0.0
    return Rule(aligned(x), linear=((0,),), saved_bytes_per_element=kept, compiled_saved_bytes_per_element=0.0)
