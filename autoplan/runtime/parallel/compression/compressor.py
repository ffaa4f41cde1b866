"""What every compression of gradients has in common: errors, checkpoints of them, a beginning anew.

What a rank's gradient lacks when it has been compressed may be kept, and added to the next step's (error feedback;
Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes"). The sum of the ranks'
errors is all that their theory asks to be kept. A checkpoint holds that sum, for any data axis, and each rank goes on
with its share of it: whoever saved does as well, so that a training is the same whether it goes on or is taken up.

Of torch's ``ddp_comm_hooks`` none is used. They take buckets of DistributedDataParallel and keep what they keep by a
bucket's number, which another plan doesn't share. There is none of top-k or of 1-bit Adam. ``quantization_hooks``
gather every rank's whole gradient in eight bits, which is more than an all-reduce sends from nine ranks on, keep no
error, and put their tensors on a CUDA device.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

ERROR, FACTOR = "error", "factor"
"""The kinds of what a checkpoint has: of a parameter the sum of the ranks' errors, of a box of it PowerSGD's Q."""


class Compressor(ABC):
    """The gradients of one group that go compressed, on one rank.

    held       their parameters, whose gradients lie where the backward writes them
    group      over which they are summed
    errors     of each what this rank has left out, in its shape; none where nothing is kept
    optimizer  that steps by these gradients, once there is one
    """

    optimizer: Optimizer | None = None

    def __init__(self, held: Sequence[ShardedParameter], group: ProcessGroup, feeds_back: bool = True) -> None:
        self.held, self.group = sorted(held, key=shape_of), group
        kept = self.held if feeds_back else []
        self.errors = [torch.zeros_like(h.values, device=h.parameter.device) for h in kept]

    @abstractmethod
    def sum_up(self) -> None:
        """Gives every parameter its gradient; one that no rank had a gradient of stays without, and keeps its error."""

    def follow(self, optimizer: Optimizer) -> None:
        """Who steps by these gradients."""
        self.optimizer = optimizer

    @property
    def left_out(self) -> dict[str, Tensor]:
        """The errors by the parameters' names."""
        return {h.name: error for h, error in zip(self.held, self.errors, strict=False)}

    @property
    def factors(self) -> dict[str, Tensor]:
        """What it goes on with beside errors, by what a checkpoint knows it by."""
        return {}

    def begin(self, keys: Sequence[str] | None = None) -> None:
        """Nothing has been left out yet; ``keys``: of these factors alone, errors stay."""
        for error in self.errors if keys is None else ():
            error.zero_()

    def add_up(self) -> None:
        """Makes every error the sum of all ranks'; every rank calls it, and ``share_out`` after it."""
        for error in self.errors:
            dist.all_reduce(error, group=self.group)

    def share_out(self) -> None:
        """Has each rank hold its share of such a sum."""
        for error in self.errors:
            error.div_(self.group.size())


def shape_of(held: ShardedParameter) -> tuple[int, ...]:
    return tuple(held.values.shape)
