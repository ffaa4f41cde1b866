"""Complex numbers, and transforms to frequencies: whole along the dims that are transformed, partial sums pass."""

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, letters, rule
from autoplan.rules.tensor.elementwise import aligned
from autoplan.rules.tensor.slicing import along

PASSES = ((0,),)


@rule("aten.view_as_complex.default")
def view_as_complex(x: TensorType) -> Rule:
    """Pairs in the last dim become one number."""
    free = letters(len(x.shape) - 1)
    return Rule(f"{free} w".replace("[] ", "") + f" -> {free}", whole="w", linear=PASSES, cost="free")


@rule("aten.view_as_real.default")
def view_as_real(x: TensorType) -> Rule:
    return Rule(f"{letters(x)} -> " + f"{letters(x)} w".replace("[] ", ""), whole="w", linear=PASSES, cost="free")


@rule("aten.complex.default")
def from_parts(real: TensorType, imaginary: TensorType) -> Rule:
    return Rule(aligned(real, imaginary), linear=((0, 1),))


@rule("aten.polar.default")
def polar(radius: TensorType, angle: TensorType) -> Rule:
    """radius · exp(i · angle), which is linear in the radius, but torch's gradient isn't: it goes along the result's
    sign, which is the opposite of exp(i · angle) where the radius is negative, as summands of it may be."""
    return Rule(aligned(radius, angle), saved=(1, "out"))


@rule("aten._conj_physical.default", "aten.conj_physical.default")
def conjugate(x: TensorType) -> Rule:
    return Rule(aligned(x), linear=PASSES)


@rule("aten._fft_r2c.default", "aten._fft_c2c.default", "aten._fft_c2r.default")
def transform(x: TensorType, dims: tuple[int, ...], *options: object) -> Rule:
    return along(x, tuple(d % len(x.shape) for d in dims), linear=PASSES)
