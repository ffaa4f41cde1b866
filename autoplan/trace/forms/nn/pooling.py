"""Pooling over one, two or three dims of space, with every argument spelled out."""

from collections.abc import Sequence

from autoplan.ir.graph import TensorType
from autoplan.trace.canonical_forms import Builder, Ref, form
from autoplan.trace.forms.nn.convolution import several

DIMS = (1, 2, 3)


def max_pool(b: Builder, x: Ref, space: int, args: Sequence[object]) -> Ref:
    """args: kernel, stride, padding, dilation, and whether a window may reach over the end."""
    defaults: tuple[object, ...] = ((), 0, 1, False)
    kernel, stride, padding, dilation, ceil = [*args, *defaults[len(args) - 1 :]]
    sizes = several(kernel, space)  # type: ignore[arg-type]
    strides = several(stride, space) if stride else sizes  # type: ignore[arg-type]
    rest = several(padding, space), several(dilation, space)  # type: ignore[arg-type]
    return b.emit(f"aten.max_pool{space}d.default", x, sizes, strides, *rest, bool(ceil))


def average(b: Builder, x: Ref, space: int, args: Sequence[object]) -> Ref:
    """args: kernel, stride, padding, over the end, whether what is padded counts, and what to divide by instead."""
    missing: tuple[object, ...] = ((), 0)
    kernel, stride, padding, *options = [*args, *missing[len(args) - 1 :]]
    sizes = several(kernel, space)  # type: ignore[arg-type]
    strides = several(stride, space) if stride else sizes  # type: ignore[arg-type]
    defaults = (False, True) if space == 1 else (False, True, None)  # in one dim there is nothing to divide by instead
    told = (*options, *defaults[len(options) :])
    return b.emit(f"aten.avg_pool{space}d.default", x, sizes, strides, several(padding, space), *told)  # type: ignore[arg-type]


def adaptive(b: Builder, kind: str, x: Ref, space: int, size: int | Sequence[int]) -> Ref:
    """Windows of one size where the sizes divide; a mean over all where the result is one element."""
    wanted, before = several(size, space), b.shape(x)[-space:]
    wanted = tuple(s if w is None else w for s, w in zip(before, wanted, strict=True))
    if wanted == before:
        return x
    dims = tuple(range(len(b.shape(x)) - space, len(b.shape(x))))
    if kind == "avg" and set(wanted) == {1}:
        return b.emit("aten.mean.dim", x, dims, True)
    if all(have % want == 0 for have, want in zip(before, wanted, strict=True)):
        windows = tuple(have // want for have, want in zip(before, wanted, strict=True))
        return max_pool(b, x, space, (windows,)) if kind == "max" else average(b, x, space, (windows,))
    if kind == "avg" and space == 2:
        return b.emit("aten.adaptive_avg_pool2d.default", x, wanted)
    shape = TensorType((*b.shape(x)[:-space], *wanted), b.type(x).dtype)
    return b.emit(f"autoplan.adaptive_{kind}_pool", x, wanted, type=shape, hint="pooled")


def register(space: int) -> None:
    @form(f"aten.max_pool{space}d.default")
    def maximum(b: Builder, x: Ref, *args: object) -> Ref:
        return max_pool(b, x, space, args)

    @form(f"aten.max_pool{space}d_with_indices.default")
    def maximum_with_indices(b: Builder, x: Ref, *args: object) -> tuple[Ref | None, ...]:
        return max_pool(b, x, space, args), None

    @form(f"aten.avg_pool{space}d.default")
    def average_over(b: Builder, x: Ref, *args: object) -> Ref:
        return average(b, x, space, args)

    @form(f"aten.adaptive_avg_pool{space}d.default", f"aten._adaptive_avg_pool{space}d.default")
    def adaptive_average(b: Builder, x: Ref, size: int | Sequence[int]) -> Ref:
        return adaptive(b, "avg", x, space, size)

    @form(f"aten.adaptive_max_pool{space}d.default")
    def adaptive_maximum(b: Builder, x: Ref, size: int | Sequence[int]) -> tuple[Ref | None, ...]:
        return adaptive(b, "max", x, space, size), None


for _space in DIMS:
    register(_space)
