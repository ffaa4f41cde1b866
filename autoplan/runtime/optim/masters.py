"""Masters: the values that the optimizer updates, beside the parameters that the program computes with.

There are two reasons to have them. Under mixed precision a parameter is held in the dtype that it is computed in, and
its master in float32 (Micikevicius et al. 2018, section 3.1). With an offloaded optimizer the masters lie in the host's
memory, with the optimizer's state (ZeRO-Offload, Ren et al. 2021).

A step brings the gradients to the masters, once they are summed and clipped, updates these, and publishes their values
to the parameters. On the device a master's gradient is the parameter's own, in float32; the host's is a copy. On a CPU
both memories are one, and the copies run all the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local


@dataclass(frozen=True)
class HostGradient:
    """Where the gradient of a master with the host lies."""

    held: ShardedParameter
    master: nn.Parameter
    memory: Tensor


def attach(optimizer: Optimizer, held: Sequence[ShardedParameter], device: torch.device, offloaded: bool) -> None:
    """Has each step of an optimizer over masters take gradients to them before and publish their values after it.

    offloaded  the masters lie with the host
    """
    trained = [(h, h.master) for h in held if h.master is not None]
    if offloaded:
        gradients = tuple(HostGradient(h, master, host_memory(master)) for h, master in trained)
        optimizer.register_step_pre_hook(lambda *_: gradients_down(gradients, device))
    else:
        optimizer.register_step_pre_hook(lambda *_: share_gradients(held))
    optimizer.register_step_post_hook(lambda *_: publish([h for h, _ in trained]))


def share_gradients(held: Iterable[ShardedParameter]) -> None:
    """Gives each master on the device its parameter's gradient, the same memory."""
    for each in held:
        if each.master is not None:
            each.master.grad = each.parameter.grad


def host_memory(like: Tensor) -> Tensor:
    """Of the host, from which an accelerator copies without stopping for it."""
    return torch.zeros_like(like, requires_grad=False, pin_memory=torch.accelerator.is_available())


def gradients_down(gradients: Iterable[HostGradient], device: torch.device) -> None:
    """Each gradient to the host; what has none on the device has none there."""
    for gradient in gradients:
        here = gradient.held.gradient
        if here is not None:
            gradient.memory.copy_(here, non_blocking=True)
        gradient.master.grad = None if here is None else gradient.memory
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@torch.no_grad()
def publish(held: Iterable[ShardedParameter]) -> None:
    """The masters' values to the parameters: after an update, and once something else has set them."""
    behind = [h for h in held if h.master is not None]
    if behind:
        parameters, masters = [local(h.parameter) for h in behind], [local(h.updated) for h in behind]
        torch._foreach_copy_(parameters, masters, non_blocking=True)  # public only one by one
