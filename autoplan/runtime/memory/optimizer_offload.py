"""Optimizer state in the host's memory, and the update there (ZeRO-Offload, Ren et al. 2021).

The host holds a copy of each of this rank's parts of the parameters, its gradient and its optimizer state. A step takes
the gradients down, once they are summed and clipped, updates the copies there, and takes their values up again. On a
CPU both memories are one, and the copies run all the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


@dataclass(frozen=True)
class HostGradient:
    """Where a parameter's gradient lies for its host copy."""

    held: ShardedParameter
    memory: Tensor


class HostOptimizer(Optimizer):
    """Mixed into a class of torch.optim whose parameters are the host's copies."""

    gradients: tuple[HostGradient, ...] = ()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients on the device as well."""
        super().zero_grad(set_to_none)
        for gradient in self.gradients:
            gradient.held.parameter.grad = None


def on_host_memory(kind: type[Optimizer]) -> type[Optimizer]:
    """The same optimizer, over the host's copies."""
    return type(f"Host{kind.__name__}", (HostOptimizer, kind), {})


def attach(optimizer: Optimizer, held: Sequence[ShardedParameter], device: torch.device) -> None:
    """Has each step of an optimizer over host copies take gradients down before and values up after it."""
    assert isinstance(optimizer, HostOptimizer)
    optimizer.gradients = tuple(HostGradient(h, host_memory(h.master)) for h in held if h.master is not None)
    optimizer.register_step_pre_hook(lambda *_: gradients_down(optimizer.gradients, device))
    optimizer.register_step_post_hook(lambda *_: values_up(held))


def host_memory(like: Tensor) -> Tensor:
    """Of the host, from which an accelerator copies without stopping for it."""
    return torch.zeros_like(like, requires_grad=False, pin_memory=torch.accelerator.is_available())


def gradients_down(gradients: Iterable[HostGradient], device: torch.device) -> None:
    """Each gradient to the host; what has none on the device has none there."""
    for gradient in gradients:
        here, master = gradient.held.gradient, gradient.held.master
        assert master is not None
        if here is not None:
            gradient.memory.copy_(here, non_blocking=True)
        master.grad = None if here is None else gradient.memory
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def values_up(held: Iterable[ShardedParameter]) -> None:
    """What the host updated, to the device."""
    for each in held:
        if each.master is not None:
            each.values.copy_(each.master.detach(), non_blocking=True)


def take_up(held: Iterable[ShardedParameter]) -> None:
    """The device's values to the host, once something other than a step has set them."""
    for each in held:
        if each.master is not None:
            each.master.detach().copy_(each.values)
