"""Cross-entropy and what it is divided by."""

import torch
from torch import Tensor
from torch.nn import functional


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
    logits: Tensor, target: Tensor, weight: Tensor, counts: Tensor | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
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
