"""Batch norm, whole and with the batch split over ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.collectives.typed import all_reduce_to_replicate


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    num_batches_tracked: Tensor | None, training: bool, momentum: float | None, eps: float,
) -> Tensor:  # fmt: skip
    """x [b, c, ..], normalised for each channel; in training the buffers are updated in place, as nn.BatchNorm does."""
    factor = average_factor(num_batches_tracked, training, momentum)
    return functional.batch_norm(x, running_mean, running_var, weight, bias, training, factor, eps)


def average_factor(num_batches_tracked: Tensor | None, training: bool, momentum: float | None) -> float:
    """The weight of this batch's statistics in the running ones; None for the momentum means a plain average."""
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
    if momentum is not None:
        return momentum
    return 1.0 / float(num_batches_tracked) if training and num_batches_tracked is not None else 0.0


def sync_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    num_batches_tracked: Tensor | None, training: bool, momentum: float | None, eps: float, *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """The same from this rank's rows, with the whole batch's statistics: x S(0) [b/n, c, ..], all else R -> S(0).

    Two all-reduces over [c] forward (of the sums, then of the squared deviations) and two backward. Every rank updates
    its buffers alike.
    """
    assert training, "in evaluation the running statistics serve, and rows are independent"
    _, ways = index_over(axes)
    over = [d for d in range(x.ndim) if d != 1]
    count = x.numel() // x.shape[1] * ways
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    mean = summed(wide.sum(over, keepdim=True), axes) / count
    centred = wide - mean
    variance = summed(centred.square().sum(over, keepdim=True), axes) / count
    factor = average_factor(num_batches_tracked, training, momentum)
    if running_mean is not None and running_var is not None:
        unbiased = variance.detach().flatten() * (count / (count - 1))
        running_mean.lerp_(mean.detach().flatten().to(running_mean.dtype), factor)
        running_var.lerp_(unbiased.to(running_var.dtype), factor)
    result = centred * torch.rsqrt(variance + eps)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(x.dtype)


def summed(x: Tensor, axes: Sequence[MeshAxis]) -> Tensor:
    for axis in axes:
        x = all_reduce_to_replicate(x, axis)
    return x
