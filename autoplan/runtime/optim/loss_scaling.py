"""Dynamic loss scaling, so that small gradients don't vanish in float16 (Micikevicius et al. 2018, section 3.2).

The rule is torch's: the scale begins at 2^16, doubles after 2000 steps without an overflow and halves at each; whether
any gradient of any rank overflowed is summed over the world, so that all ranks skip the same steps and go on with the
same scale. A power of two changes no digit of what it multiplies.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import SGD, Optimizer

from autoplan.errors import DivergedError
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

FLOOR = 1.0
"""Of the scale, as DeepSpeed's min_loss_scale: where gradients overflow unscaled, it isn't the scale that does it."""

Scale = Callable[[Tensor], Tensor]
"""What the engines do to each microbatch's loss before its backward."""


def unscaled(loss: Tensor) -> Tensor:
    return loss


class LossScaling:
    """The scale of one program's losses; a collective of the whole world to make and to unscale.

    factor  the scale, as the host knows it: read once a step, for whether gradients are dropped depends on it
    """

    def __init__(self, held: Sequence[ShardedParameter], device: torch.device) -> None:
        self.held = tuple(h for h in held if h.stored.trainable)
        self.scaler = ShardedGradScaler(device=device.type, process_group=dist.group.WORLD)
        self.scaler.scale(torch.zeros((), device=device))  # has it keep its scale here, also where no loss comes by
        self.factor = self.scaler.get_scale()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, in float32: a loss in float16 would overflow itself."""
        return self.scaler.scale(loss.float())

    def unscale(self, step: int) -> bool:
        """Divides all gradients by the scale; where one of any rank overflowed, this step has none instead.

        Changes the scale for the next step. Returns whether the step is to be skipped, the same on every rank.
        DivergedError where gradients overflow though the scale is at its floor.
        """
        before = self.factor
        self.scaler.unscale_(gradients_alone(self.held))
        self.scaler.update()
        self.factor = self.scaler.get_scale()
        skipped = self.factor < before
        if skipped:
            for each in self.held:
                each.parameter.grad = None
        if self.factor < FLOOR:
            raise DivergedError(
                f"a loss scale of {before:g} at step {step}",
                "gradients overflow in float16 at the least scale there is: it is the model that diverges, or its "
                "activations exceed 65504",
                "use a lower learning rate or precision='bf16-mixed'",
            )
        return skipped

    def state_dict(self) -> dict[str, float]:
        """The scale and the steps since it changed, as torch's scaler keeps them."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.scaler.load_state_dict(dict(state))
        self.factor = self.scaler.get_scale()


def gradients_alone(held: Sequence[ShardedParameter]) -> Optimizer:
    """This rank's gradients as an optimizer over them: a scaler asks for one, to find the gradients of its parameters.

    Local parts stand for DTensors, since the kernel that unscales takes no mixture of both.
    """
    views = []
    for gradient in (h.gradient for h in held):
        if gradient is not None:
            views.append(nn.Parameter(gradient, requires_grad=False))
            views[-1].grad = gradient
    return SGD([{"params": views}])
