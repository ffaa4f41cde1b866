"""Clipping by the global norm: each parameter counted once, however many ranks keep it.

By torch's documented foreach functions: a few kernels for all gradients, not several for each.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


def total_norm(held: Sequence[ShardedParameter], device: torch.device, replica: MeshAxis | None = None) -> Tensor:
    """The 2-norm of all gradients of the model, a float64 scalar, the same on every rank.

    replica  the ranks of one replica, where each steps by itself; None: the world

    Each rank's squares are divided by how many ranks keep the same values; one all-reduce over the world adds them.
    Each gradient's norm is taken in its own dtype, at least float32, as torch's own clipping does.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for (copies, *_), gradients in alike(held, lambda parameter: parameter.copies).items():
        dtype = torch.float64 if gradients[0].dtype == torch.float64 else torch.float32
        norms = torch.stack(torch._foreach_norm(gradients, 2.0, dtype=dtype)).to(device, torch.float64)
        squares += norms.square().sum() / copies
    add_up(squares, replica)
    return squares.sqrt()


def alike(
    held: Sequence[ShardedParameter], key: Callable[[ShardedParameter], object]
) -> dict[tuple, list[Tensor]]:
    """This rank's gradients that aren't empty, by key, device and dtype: one kernel of torch takes each list."""
    found: dict[tuple, list[Tensor]] = {}
    for parameter in held:
        for gradient in parameter.gradients:
            if gradient.numel():
                found.setdefault((key(parameter), gradient.device, gradient.dtype), []).append(gradient)
    return found


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
    for gradients in alike(held, lambda _: None).values():
        torch._foreach_mul_(gradients, scale.to(gradients[0]))
    return norm
