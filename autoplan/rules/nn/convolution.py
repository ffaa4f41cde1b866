"""Convolutions and resizing: batch and channels split; of a convolution the dims of space, too."""

from autoplan.ir.graph import TensorType
from autoplan.rules.nn.windows import convolving, with_halos
from autoplan.rules.registry import Rule, letters, rule

PASSES = ((0,),)


@rule("aten.convolution.default")
def convolution(
    x: TensorType, w: TensorType, bias: TensorType | None, stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], transposed: bool, output_padding: tuple[int, ...], groups: int,
) -> Rule:  # fmt: skip
    """x [b, i, space..], w [o, i/groups, kernel..] -> [b, o, space..]; transposed, w is [i, o/groups, kernel..].

    Several groups split among the ranks, one group splits into output channels or a sum over input channels. A dim of
    space splits by itself where the kernel's windows lie side by side (a patch embedding's), else by a body that
    fetches what the windows see of the neighbours' parts.
    """
    space = len(x.shape) - 2
    windows = () if transposed else convolving(w.shape[2:], stride, padding, dilation)
    fills = [window.fills(size) for window, size in zip(windows, x.shape[2:], strict=not transposed)]
    rows, kernel, out = (letters(space, prefix) for prefix in ("x", "k", "y"))
    rows = " ".join(f"(y{i} k{i})" if side else f"x{i}" for i, side in enumerate(fills)) or rows
    if transposed:
        fills = [spreads(*sizes) for sizes in zip(w.shape[2:], stride, padding, dilation, output_padding, strict=True)]
        out = " ".join(f"(x{i} k{i})" if side else f"y{i}" for i, side in enumerate(fills))
    apart = {f for i, side in enumerate(fills) if not side for f in (f"x{i}", f"y{i}")}
    i, o = ("(g i)", "(g o)") if groups > 1 else ("i", "o")
    filters = f"{i} o" if transposed else f"{o} i"
    operands = f"b {i} {rows}, {filters} {kernel}" + (f", {o}" if bias is not None else "")
    contracted = {"i", *kernel.split()} if bias is not None else set(kernel.split())
    return Rule(
        f"{operands} -> b {o} {out}",
        sizes={"g": groups, "o": w.shape[1] if transposed else w.shape[0] // groups} if groups > 1 else {},
        whole=frozenset(apart | contracted),
        linear=((0,), (1,)) if bias is None else (),
        extra=with_halos(x, windows, "convolution", 1 if bias is None else 2),
        factor_args=((8, "g"),) if groups > 1 else (),
        cost="matmul",
        saved=(0, 1),
    )


def spreads(kernel: int, stride: int, padding: int, dilation: int, more: int) -> bool:
    """Whether a transposed convolution makes of each place a stretch of its own."""
    return kernel == stride and dilation == 1 and padding == more == 0


NEAREST = tuple(f"aten.{name}{n}d.vec" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3))
SMOOTH = tuple(
    f"aten.{name}.vec"
    for name in (
        "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
        "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    )
)  # fmt: skip


@rule(*NEAREST)
def repeated(x: TensorType, size: tuple[int, ...] | None, factors: tuple[float, ...] | None = None) -> Rule:
    """By whole factors each place becomes a stretch of its own."""
    if factors is None or not all(float(factor).is_integer() for factor in factors):
        return resize(x)
    space = range(len(x.shape) - 2)
    after = " ".join(f"(x{i} r{i})" for i in space)
    sizes = {f"r{i}": int(factor) for i, factor in enumerate(factors)}
    return Rule(f"b c {letters(len(space), 'x')} -> b c {after}", sizes=sizes, whole=frozenset(sizes), linear=PASSES)


@rule(*SMOOTH)
def resize(x: TensorType, *options: object) -> Rule:
    """x [b, c, space..]: every new element is a weighted sum of old ones, by weights of the sizes alone."""
    space = len(x.shape) - 2
    before, after = letters(space, "x"), letters(space, "y")
    return Rule(f"b c {before} -> b c {after}", whole=frozenset({*before.split(), *after.split()}), linear=PASSES)


@rule("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sample(x: TensorType, grid: TensorType, *options: object) -> Rule:
    """x [b, c, space..] read between its places: grid [b, out.., w], w coordinates each -> [b, c, out..]."""
    space = len(x.shape) - 2
    before, after = letters(space, "x"), letters(space, "y")
    whole = frozenset({*before.split(), "w"})
    return Rule(f"b c {before}, b {after} w -> b c {after}", whole=whole, linear=((0,),), saved=(0, 1))
