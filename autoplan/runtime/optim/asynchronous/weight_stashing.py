"""Two versions of the weights (PipeDream-2BW): gradients are those of the version before the one that they change.

    W(t+1) = W(t) - update(gradient at W(t-1)),   W(-1) = W(0)

Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1. It is the rule by which a
pipeline needs no flush between two steps: a microbatch meets one version from end to end while the step before is still
on its way back.

What runs here follows the rule exactly, and flushes all the same: ``Program.step`` returns the loss of the batch that
it was given, with all of its gradients complete, so a step's last backward is awaited before the next step's first
forward. The bubble is 1F1B's, and is priced so; no time is gained by the older version, and its memory is held.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class TwoVersions:
    """The older version of a rank's parameters, W(t-1), beside the newest, W(t), which stays where parameters lie.

    Both are what the program computes with; a master there is of the newest alone.
    """

    def __init__(self, held: Sequence[ShardedParameter], optimizer: Optimizer) -> None:
        self.held = tuple(h for h in held if h.stored.trainable)
        self.older = {h.name: torch.empty_like(h.parameter.detach()) for h in self.held}
        optimizer.register_step_pre_hook(lambda *_: self.keep())

    def keep(self) -> None:
        """Now the newest is the older: before an update, and once something other than an update has set it."""
        for each in self.held:
            self.older[each.name].copy_(each.parameter.detach())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within it the program computes with the older version; gradients stay."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Exchanges the memory that a parameter and its older version have; nothing is copied."""
        for each in self.held:
            newest = each.parameter.data
            each.parameter.data = self.older[each.name]
            self.older[each.name] = newest

    def stale(self) -> Mapping[str, Tensor]:
        """The older version by the parameters' names, to read or to write in place: a part of a checkpoint."""
        return self.older
