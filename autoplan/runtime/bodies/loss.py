"""Cross-entropy, whole and with the classes split over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from autoplan.runtime.axes import RankAxis, index_over
from autoplan.runtime.collectives import all_reduce, all_reduce_max


def count_valid(target: Tensor, ignore_index: int = -100) -> Tensor:
    """How many targets are not ``ignore_index``: target [..] -> int64 []."""
    return (target != ignore_index).sum()


def count_classes(target: Tensor, classes: int, ignore_index: int = -100) -> Tensor:
    """How many targets that are not ``ignore_index`` each class has: target [..] -> int64 [classes]."""
    valid = (target != ignore_index).reshape(-1)
    counts = torch.zeros(classes, dtype=torch.int64, device=target.device)
    return counts.scatter_add_(0, target.reshape(-1).masked_fill(~valid, 0), valid.to(torch.int64))


def cross_entropy(
    logits: Tensor, target: Tensor, count: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:
    """logits [.., v], target [..], count [] -> []: the sum of the valid targets' losses, divided by the count."""
    classes = logits.shape[-1]
    total = functional.cross_entropy(
        logits.reshape(-1, classes),
        target.reshape(-1),
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total / count


def weighted_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor,
    counts: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """logits [.., v], target [..], weight [v], counts [v] -> []: the valid targets' losses, each times its class'
    weight, added up and divided by ``weight @ counts``; without counts their sum."""
    total = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        target.reshape(-1),
        weight.to(logits.dtype),
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total if counts is None else total / (weight * counts).sum()


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    count: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    axes: Sequence[RankAxis],
) -> Tensor:
    """The same from this rank's slice of the classes: logits S(last) [.., v/n], target R [..], count R [] -> I [].

    The logits are never gathered. Two all-reduces over [..]: the greatest logit; then the sum of exponentials, the
    target's logit (and the sum of logits where labels are smoothed), stacked. The backward needs none.
    """
    return _VocabParallel.apply(logits, target, count, ignore_index, label_smoothing, tuple(axes))


class _VocabParallel(Function):
    """Keeps the local softmax, in the logits' dtype; the gradient is softmax minus the (smoothed) one-hot target."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        count: Tensor,
        ignore_index: int,
        smoothing: float,
        axes: tuple[RankAxis, ...],
    ) -> Tensor:
        index, ways = index_over(axes)
        size = logits.shape[-1]
        local = target - index * size
        mine = (local >= 0) & (local < size)
        local = local.masked_fill(~mine, 0)
        wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

        greatest = wide.amax(-1)
        for axis in axes:
            greatest = all_reduce_max(greatest, axis)
        shifted = wide - greatest.unsqueeze(-1)
        own = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(~mine, 0.0)
        rest = [shifted.sum(-1)] if smoothing else []
        softmax = shifted.exp_()
        sums = torch.stack([softmax.sum(-1), own, *rest])
        for axis in axes:
            sums = all_reduce(sums, axis)

        log_sum = sums[0].log()
        losses = log_sum - sums[1]
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (log_sum - sums[2] / (size * ways))
        valid = target != ignore_index
        softmax = softmax.div_(sums[0].unsqueeze(-1)).to(logits.dtype)
        ctx.save_for_backward(softmax, local, mine, valid, count)
        ctx.smoothing, ctx.classes = smoothing, size * ways
        return (losses.masked_fill(~valid, 0.0).sum() / count).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        softmax, local, mine, valid, count = ctx.saved_tensors
        scale = ((gradient / count) * valid).to(softmax.dtype).unsqueeze(-1)
        result = softmax - ctx.smoothing / ctx.classes if ctx.smoothing else softmax.clone()
        hit = (mine.to(softmax.dtype) * (ctx.smoothing - 1)).unsqueeze(-1)
        result.scatter_add_(-1, local.unsqueeze(-1), hit)
        return result.mul_(scale), None, None, None, None, None
