"""Older versions of the weights: gradients are those of a version before the one that they change.

    W(t+1) = W(t) - update(gradient at W(t-s)),   W(-1) = W(-2) = … = W(0)

Stale parameter servers have any s: every worker's gradients are as old as stale synchronous servers allow them to be
(Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"), in every run the
same. New weights are pulled while the step that doesn't need them computes. Pipelines without a flush have versions of
their own (``stashed_versions``).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

STALE = "stale"
"""The kind of what a checkpoint has of the version before; of those before it "stale-2" and so on."""


class OlderVersions:
    """Versions of a rank's parameters, W(t-1) to W(t-s), beside the newest, W(t), which stays where parameters lie.

    All are what the program computes with; a master there is of the newest alone.

    count   s
    older   each version by the parameters' names, the newest of them first
    """

    def __init__(self, held: Sequence[ShardedParameter], optimizer: Optimizer, count: int) -> None:
        self.held = tuple(h for h in held if h.stored.trainable)
        self.older = deque({h.name: torch.empty_like(h.parameter.detach()) for h in self.held} for _ in range(count))
        optimizer.register_step_pre_hook(lambda *_: self.keep())

    def keep(self) -> None:
        """Before an update: the newest is now an older one, and the oldest is let go."""
        self.older.rotate(1)
        for each in self.held:
            self.older[0][each.name].copy_(each.parameter.detach())

    def begin(self) -> None:
        """Something other than an update has set the newest: there was nothing before it."""
        for _ in range(len(self.older)):
            self.keep()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within it the program computes with the oldest version; gradients stay."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Exchanges the memory that a parameter and its oldest version have; nothing is copied."""
        for each in self.held:
            newest = each.parameter.data
            each.parameter.data = self.older[-1][each.name]
            self.older[-1][each.name] = newest

    def stale(self) -> Mapping[str, Mapping[str, Tensor]]:
        """The versions by their kinds in a checkpoint, "stale", "stale-2", …, and the parameters' names, to read or to
        write in place."""
        return {STALE + (f"-{n}" if n > 1 else ""): version for n, version in enumerate(self.older, start=1)}
