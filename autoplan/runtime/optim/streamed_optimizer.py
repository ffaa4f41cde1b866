"""An optimizer whose masters and state lie on the node's disks: parameters are updated one after another.

ZeRO-Infinity (Rajbhandari et al. 2021, section 5.2). While one is updated, by the host, the next one's master and state
are read and the ones before are written. So no more than a few stand in memory at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autoplan.runtime.memory.disk_memory import DiskMemory, on_disk
from autoplan.runtime.optim.gathered_optimizer import Group, Kind
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local

BEHIND = 2  # parameters that are being written while another is updated


class StreamedOptimizer(Optimizer):
    """Of this rank's masters, which an elementwise class of torch.optim updates as they lie here.

    groups  what is updated with the same options
    held    each master's parameter

    A step takes each gradient from the parameter, and gives the parameter its master's value.
    """

    def __init__(
        self, groups: Sequence[Group], held: Mapping[nn.Parameter, ShardedParameter], disk: DiskMemory
    ) -> None:
        self.kinds: tuple[Kind, ...] = tuple(group.kind for group in groups)
        self.held, self.disk = held, disk
        super().__init__([group.group for group in groups], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient: of none where they overflowed in float16. DiskError where
        the disk is full or fails: what was updated by then isn't undone."""
        turns = [
            (kind, group, master)
            for kind, group in zip(self.kinds, self.param_groups, strict=True)
            for master in group["params"]
            if self.held[master].gradient is not None
        ]
        behind: deque[Future[None]] = deque()
        coming = self.disk.read_ahead(self.tensors(turns[0][2])) if turns else None
        for (kind, group, master), after in zip(turns, [*turns[1:], None], strict=False):
            assert coming is not None
            coming.result()
            coming = self.disk.read_ahead(self.tensors(after[2])) if after else coming
            self.update(kind, group, master)
            behind.append(self.disk.write_behind(self.tensors(master)))
            if len(behind) > BEHIND:
                behind.popleft().result()
        for written in behind:
            written.result()

    def update(self, kind: Kind, group: Mapping[str, Any], master: nn.Parameter) -> None:
        """One parameter's, by an optimizer of its own that is there for it alone."""
        held = self.held[master]
        assert held.gradient is not None
        master.grad = held.gradient.to(master.device, master.dtype)
        inner = kind([{**group, "params": [master]}])
        if master in self.state:
            inner.state[master] = self.placed(master, self.state[master])
        inner.step()
        master.grad = None
        self.state[master] = self.placed(master, inner.state[master])
        local(held.parameter.detach()).copy_(master)

    def placed(self, master: nn.Parameter, state: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state with all that has an element for each of its own on the disk: what is new there isn't."""
        found = dict(state)
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == master.shape and value.ndim and not on_disk(value):
                found[name] = self.state_like(master, value.dtype).copy_(value)
        return found

    def state_like(self, master: nn.Parameter, dtype: torch.dtype) -> Tensor:
        """Memory for a field of a parameter's state."""
        return self.disk.zeros(master.shape, dtype)

    def tensors(self, master: nn.Parameter) -> list[Tensor]:
        """What an update of it reads and writes on the disk."""
        state = self.state.get(master, {})
        return [master.detach(), *(value for value in state.values() if isinstance(value, Tensor))]


def state_memory(optimizer: Optimizer, parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """Zeros where an optimizer keeps a field of a parameter's state that has an element for each of its own."""
    if isinstance(optimizer, StreamedOptimizer):
        return optimizer.state_like(parameter, dtype)
    return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
