"""Convolutions, pooling, resizing: batch and channels split, the dims of space are whole."""

from __future__ import annotations

from autoplan.graph import TensorType
from autoplan.rule import Rule, letters, rule

PASSES = ((0,),)


@rule("aten.convolution.default")
def convolution(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Rule:
    """x [b, i, space..], w [o, i/groups, kernel..] -> [b, o, space..]; transposed, w is [i, o/groups, kernel..].

    Several groups split among the ranks, one group splits into output channels or a sum over input channels.
    """
    space = len(x.shape) - 2
    rows, kernel, out = (letters(space, prefix) for prefix in ("x", "k", "y"))
    i, o = ("(g i)", "(g o)") if groups > 1 else ("i", "o")
    filters = f"{i} o" if transposed else f"{o} i"
    operands = f"b {i} {rows}, {filters} {kernel}" + (f", {o}" if bias is not None else "")
    contracted = {"i", *kernel.split()} if bias is not None else set(kernel.split())
    return Rule(
        f"{operands} -> b {o} {out}",
        sizes={"g": groups, "o": w.shape[1] if transposed else w.shape[0] // groups} if groups > 1 else {},
        whole=frozenset({*rows.split(), *out.split()} | contracted),
        linear=((0,), (1,)) if bias is None else (),
        factor_args=((8, "g"),) if groups > 1 else (),
        cost="matmul",
        saved=(0, 1),
    )


def window(x: TensorType, **said: object) -> Rule:
    """A pooling over the last two dims."""
    free = len(x.shape) - 2
    return Rule(
        f"{letters(free)} x0 x1 -> {letters(free)} y0 y1",
        whole=frozenset(("x0", "x1", "y0", "y1")),
        **said,  # type: ignore[arg-type]
    )


@rule("aten.max_pool2d.default")
def max_pool2d(x: TensorType, kernel: tuple[int, ...], *options: object) -> Rule:
    """Beside its input it keeps where each greatest element was, eight bytes each."""
    return window(x, saved=(0,), saved_bytes_per_element=8.0)


@rule("aten.avg_pool2d.default")
def avg_pool2d(x: TensorType, kernel: tuple[int, ...], *options: object) -> Rule:
    return window(x, linear=PASSES, saved=(0,))


@rule("aten.adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(x: TensorType, size: tuple[int, ...]) -> Rule:
    return window(x, linear=PASSES, saved=(0,))


NEAREST = tuple(f"aten.{name}{n}d.vec" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3))
SMOOTH = tuple(
    f"aten.upsample_{name}.vec" for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
)


@rule(*NEAREST, *SMOOTH)
def resize(x: TensorType, *options: object) -> Rule:
    """x [b, c, space..]: every new element is a weighted sum of old ones, by weights of the sizes alone."""
    space = len(x.shape) - 2
    before, after = letters(space, "x"), letters(space, "y")
    return Rule(f"b c {before} -> b c {after}", whole=frozenset({*before.split(), *after.split()}), linear=PASSES)
