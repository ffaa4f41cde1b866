"""How far rounding alone takes a training: the same steps on one device, every sum taken in the other order.

A model may be ill conditioned: a batch norm over values that hardly differ, a running mean of what nearly cancels.
Then no two orders of summation agree to the usual bound, and ranks sum in an order of their own. What the two orders
of one device differ by says what can be asked of ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator; no public alias

aten = torch.ops.aten


class OtherOrder(TorchDispatchMode):
    """Within it products, convolutions, sums, means and batch norms add up from the end, in the backward, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        turned = TURNED.get(func)
        return func(*args, **(kwargs or {})) if turned is None else turned(func, *args, **(kwargs or {}))


def product(func: Any, one: Tensor, other: Tensor) -> Tensor:
    return func(one.flip(-1), other.flip(-2))


def added_product(func: Any, added: Tensor, one: Tensor, other: Tensor, **factors: Any) -> Tensor:
    return func(added, one.flip(-1), other.flip(-2), **factors)


def whole(func: Any, x: Tensor, **more: Any) -> Tensor:
    return func(x.flip(tuple(range(x.dim()))), **more)


def along(func: Any, x: Tensor, dims: Any = None, *rest: Any, **more: Any) -> Tensor:
    turned = tuple(range(x.dim())) if not dims else tuple(dims)
    return func(x.flip(turned), dims, *rest, **more)


def convolution(func: Any, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """Over a group's channels; of groups of one channel over the window, where the windows from the end are those from
    the start."""
    _, stride, padding, dilation, transposed, _, groups = rest
    if not transposed and x.shape[1] > groups:
        return func(x.unflatten(1, (groups, -1)).flip(2).flatten(1, 2), weight.flip(1), *rest)
    if transposed and groups == 1 and x.shape[1] > 1:
        return func(x.flip(1), weight.flip(0), *rest)
    over = tuple(range(2, x.dim()))
    left = (x.shape[d] + 2 * p - w * (weight.shape[d] - 1) - 1 for d, p, w in zip(over, padding, dilation, strict=True))
    if transposed or any(n % s for n, s in zip(left, stride, strict=True)):
        return func(x, weight, *rest)
    return func(x.flip(over), weight.flip(over), *rest).flip(over)


def convolution_backward(func: Any, gradient: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    first, *others = func(gradient.flip(0), x.flip(0), *rest)
    return (None if first is None else first.flip(0), *others)


def batch_norm(func: Any, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    result, *others = func(x.flip(0), *rest)
    return (result.flip(0), *others)


TURNED: dict[Any, Callable[..., Any]] = {
    aten.mm.default: product,
    aten.bmm.default: product,
    aten.addmm.default: added_product,
    aten.baddbmm.default: added_product,
    aten.sum.default: whole,
    aten.mean.default: whole,
    aten.sum.dim_IntList: along,
    aten.mean.dim: along,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.native_batch_norm.default: batch_norm,
    aten.native_batch_norm_backward.default: convolution_backward,
}
