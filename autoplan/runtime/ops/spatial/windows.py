"""Convolutions and pooling with a dim of space split: each rank's windows over its part and the halo around it.

x S(dim) [b, c, space..], all else R -> S(dim). The dim is the end of a function's name: what is split isn't told.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autoplan.rules.nn.windows import Window, convolving, pooling
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.spatial.halo import with_halo

Sizes = Sequence[int]
MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def around(x: Tensor, dim: int, window: Window, fill: float, axes: Sequence[MeshAxis]) -> Tensor:
    (axis,) = axes
    return with_halo(x, dim, window.padding, max(window.after, 0), fill, axis)


def without(padding: Sizes, dim: int) -> list[int]:
    """Where the halo is there no padding is."""
    return [0 if at == dim - 2 else size for at, size in enumerate(padding)]


def convolution(dim: int, x: Tensor, w: Tensor, bias: Tensor | None, *options: Any, axes: Sequence[MeshAxis]) -> Tensor:
    """options: stride, padding, dilation, transposed, output padding, groups."""
    stride, padding, dilation, *rest = options
    window = convolving(w.shape[2:], stride, padding, dilation)[dim - 2]
    wide = around(x, dim, window, 0.0, axes)
    return torch.convolution(wide, w, bias, list(stride), without(padding, dim), list(dilation), *rest)


def max_pool(
    dim: int, x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (), dilation: Sizes = (),
    ceil_mode: bool = False, *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """What is padded is less than anything."""
    padding, dilation = padding or [0] * len(kernel), dilation or [1] * len(kernel)
    window = pooling(kernel, stride, padding, dilation)[dim - 2]
    wide = around(x, dim, window, -math.inf, axes)
    return MAX[len(kernel)](wide, list(kernel), list(stride or kernel), without(padding, dim), list(dilation))


def avg_pool(
    dim: int, x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (), *options: Any, axes: Sequence[MeshAxis]
) -> Tensor:
    """options: over the end, whether what is padded counts, what to divide by; for one dim the first two."""
    padding = padding or [0] * len(kernel)
    window = pooling(kernel, stride, padding)[dim - 2]
    wide = around(x, dim, window, 0.0, axes)
    return AVERAGE[len(kernel)](wide, list(kernel), list(stride or kernel), without(padding, dim), *options)


convolution_along_2, convolution_along_3, convolution_along_4 = (partial(convolution, dim) for dim in (2, 3, 4))
max_pool_along_2, max_pool_along_3, max_pool_along_4 = (partial(max_pool, dim) for dim in (2, 3, 4))
avg_pool_along_2, avg_pool_along_3, avg_pool_along_4 = (partial(avg_pool, dim) for dim in (2, 3, 4))
