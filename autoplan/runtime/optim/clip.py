"""Clipping by the global norm: each parameter counted once, however many ranks keep it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


def total_norm(held: Sequence[ShardedParameter], device: torch.device, replica: MeshAxis | None = None) -> Tensor:
    """The 2-norm of all gradients of the model, a float64 scalar, the same on every rank.

    replica  the ranks of one replica, where each steps by itself; None: the world

    Each rank's squares are divided by how many ranks keep the same values; one all-reduce over the world adds them.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for parameter in held:
        gradient = parameter.gradient
        if gradient is not None and gradient.numel():
            squares += torch.linalg.vector_norm(gradient, dtype=torch.float64).to(device) ** 2 / parameter.copies
    add_up(squares, replica)
    return squares.sqrt()


def add_up(values: Tensor, replica: MeshAxis | None) -> None:
    """Sums over the ranks of one model, in place."""
    if replica is None or replica.group is not None:
        dist.all_reduce(values, group=None if replica is None else replica.group)


def clip_gradients(
    held: Sequence[ShardedParameter], max_norm: float, device: torch.device, replica: MeshAxis | None = None
) -> Tensor:
    """Scales gradients so that their norm is at most ``max_norm``; returns the norm before. As torch's own."""
    norm = total_norm(held, device, replica)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in held:
        if parameter.gradient is not None:
            parameter.gradient.mul_(scale.to(parameter.gradient))
    return norm
