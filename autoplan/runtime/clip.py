"""Clipping by the global norm: each parameter counted once, however many ranks keep it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.runtime.held import HeldParameter


def total_norm(held: Sequence[HeldParameter], device: torch.device) -> Tensor:
    """The 2-norm of all gradients of the model, a float64 scalar, the same on every rank.

    Each rank's squares are divided by how many ranks keep the same values; one all-reduce over the world adds them.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for parameter in held:
        gradient = parameter.gradient
        if gradient is not None and gradient.numel():
            squares += torch.linalg.vector_norm(gradient, dtype=torch.float64).to(device) ** 2 / parameter.copies
    dist.all_reduce(squares)
    return squares.sqrt()


def clip_gradients(held: Sequence[HeldParameter], max_norm: float, device: torch.device) -> Tensor:
    """Scales gradients so that their norm is at most ``max_norm``; returns the norm before. As torch's own."""
    norm = total_norm(held, device)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in held:
        if parameter.gradient is not None:
            parameter.gradient.mul_(scale.to(parameter.gradient))
    return norm
