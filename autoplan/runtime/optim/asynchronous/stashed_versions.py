"""The versions of its weights that a rank has microbatches in flight with (Narayanan et al. 2019, section 3.3).

A microbatch's backward computes with the weights of its forward, and updates come between the two. Before an update of
a version that is still needed, the weights move to other memory and the old one stays as it is.

What autograd keeps of a forward are views of that memory, or the parameters themselves, which get it back for the
backward. Their version counters would tell that an update has changed them; but nothing that is kept has changed, so
an update leaves the counters alone, as fully_shard's gathers do.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.optim import Optimizer

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class StashedVersions:
    """Of one rank's trained parameters, numbered by the updates since the pipeline was empty.

    needed   says which versions' backwards are to come
    updates  says whether the optimizer's step is to change anything: before the first gradients it isn't
    memory   of the versions that aren't where the parameters lie; ``lies``: the one that is
    """

    def __init__(
        self, held: Sequence[ShardedParameter], optimizer: Optimizer, needed: Callable[[], set[int]],
        updates: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.parameters = [h.parameter for h in held if h.stored.trainable]
        self.needed, self.updates = needed, updates
        self.begin()
        self.counters = self.preserved()
        optimizer.register_step_pre_hook(lambda *_: self.keep())

    def begin(self) -> None:
        """The pipeline is empty: only the newest is left, and it is the first."""
        self.memory: dict[int, list[Tensor]] = {}
        self.spare: list[list[Tensor]] = []
        self.newest = self.lies = 0

    def preserved(self) -> AbstractContextManager:
        return torch.autograd._unsafe_preserve_version_counter(tuple(self.parameters))

    @torch.no_grad()
    def keep(self) -> None:
        """Before the optimizer's step, where the newest lies. A step that updates nothing publishes masters, too."""
        self.retire()
        if self.updates() and self.newest in self.needed():
            old = self.memory[self.newest] = self.lying()
            new = self.spare.pop() if self.spare else memory_like(old)
            for to, values in zip(new, old, strict=True):
                to.copy_(values)
            self.lie(new)
        self.counters = self.preserved()
        self.counters.__enter__()

    def updated(self) -> None:
        """After it, once its values are in the parameters."""
        self.counters.__exit__(None, None, None)
        self.newest += self.updates()
        self.lies = self.newest

    def retire(self) -> None:
        """Memory of versions that no microbatch in flight has met is for the next to be kept."""
        for version in self.memory.keys() - self.needed():
            self.spare.append(self.memory.pop(version))

    def compute(self, version: int) -> None:
        """The parameters are those of this version, the newest or one that is needed."""
        if version != self.lies:
            self.memory[self.lies] = self.lying()
            self.lie(self.memory.pop(version))
            self.lies = version

    def lying(self) -> list[Tensor]:
        return [p.data for p in self.parameters]

    def lie(self, memory: Sequence[Tensor]) -> None:
        for parameter, values in zip(self.parameters, memory, strict=True):
            parameter.data = values


def memory_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Memory in which tensors lie to one another as these do: what is side by side stays so (``runtime.ops``)."""
    twins: dict[int, torch.UntypedStorage] = {}
    found = []
    for x in tensors:
        storage = x.untyped_storage()
        if id(storage) not in twins:
            twins[id(storage)] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=x.device).untyped_storage()
        twin = torch.empty(0, dtype=x.dtype, device=x.device)
        found.append(twin.set_(twins[id(storage)], x.storage_offset(), x.shape, x.stride()))
    return found
