"""Pooling: batch and channels split. A dim of space splits, too: by itself where windows lie side by side and fill it,
for then it is (windows, places in one), of which the windows split; else by a body that fetches what they overlap."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from autoplan.ir.graph import TensorType
from autoplan.rules.nn.windows import Window, pooling, with_halos
from autoplan.rules.registry import Rule, letters, rule

PASSES = ((0,),)
INDEX_BYTES = 8.0  # where each greatest element was
OFFSET_BYTES, OFFSET_WINDOW = 1.0, 25  # inductor keeps its place in the window alone, of windows of as many elements


def pooled(x: TensorType, windows: Sequence[Window], **said: object) -> Rule:
    """A pooling over the last dims."""
    space = x.shape[len(x.shape) - len(windows) :]
    fills = [window.fills(size) for window, size in zip(windows, space, strict=True)]
    free = letters(len(x.shape) - len(windows))
    before = " ".join(f"(y{i} k{i})" if side else f"x{i}" for i, side in enumerate(fills))
    inner: Mapping[str, int] = {f"k{i}": window.kernel for i, window in enumerate(windows) if fills[i]}
    whole = {f for i, side in enumerate(fills) for f in ((f"k{i}",) if side else (f"x{i}", f"y{i}"))}
    return Rule(
        f"{free} {before} -> {free} {letters(len(windows), 'y')}",
        sizes=MappingProxyType(inner),
        whole=frozenset(whole),
        **said,  # type: ignore[arg-type]
    )


@rule(*(f"aten.max_pool{n}d.default" for n in (1, 2, 3)))
def max_pool(
    x: TensorType, kernel: tuple[int, ...], stride: tuple[int, ...] = (), padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (), ceil_mode: bool = False,
) -> Rule:  # fmt: skip
    """Beside its input it keeps where each greatest element was."""
    windows = pooling(kernel, stride, padding, dilation)
    extra = () if ceil_mode else with_halos(x, windows, "max_pool", 0)
    compiled = OFFSET_BYTES if math.prod(window.kernel for window in windows) <= OFFSET_WINDOW else None
    return pooled(x, windows, extra=extra, saved=(0,), saved_bytes_per_element=INDEX_BYTES,
                  compiled_saved_bytes_per_element=compiled)  # fmt: skip


@rule(*(f"aten.avg_pool{n}d.default" for n in (1, 2, 3)))
def avg_pool(
    x: TensorType, kernel: tuple[int, ...], stride: tuple[int, ...] = (), padding: tuple[int, ...] = (),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
) -> Rule:  # fmt: skip
    """What is padded counts as any place does, or there is none: then a part's edge is like any other place."""
    windows = pooling(kernel, stride, padding)
    alike = not ceil_mode and (count_include_pad or not any(padding))
    extra = with_halos(x, windows, "avg_pool", 0) if alike else ()
    return pooled(x, windows, linear=PASSES, extra=extra, saved=(0,))


def adapted(x: TensorType, size: tuple[int, ...], **said: object) -> Rule:
    free, count = letters(len(x.shape) - len(size)), len(size)
    before, after = letters(count, "x"), letters(count, "y")
    whole = frozenset({*before.split(), *after.split()})
    return Rule(f"{free} {before} -> {free} {after}", whole=whole, saved=(0,), **said)  # type: ignore[arg-type]


@rule("aten.adaptive_avg_pool2d.default", "autoplan.adaptive_avg_pool")
def adaptive_avg_pool(x: TensorType, size: tuple[int, ...]) -> Rule:
    return adapted(x, size, linear=PASSES)


@rule("autoplan.adaptive_max_pool")
def adaptive_max_pool(x: TensorType, size: tuple[int, ...]) -> Rule:
    return adapted(x, size, saved_bytes_per_element=INDEX_BYTES)
