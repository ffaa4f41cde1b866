"""What the host reads of a tensor on the device, and what it brings there.

Whatever a step asks of the device goes through here. So one place shows where a step stops, and a rehearsal, whose
tensors have no values, can answer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def read(x: Tensor, otherwise: Callable[[], list] | None = None) -> list:
    """A tensor's values as nested lists; the host waits until the device has come so far.

    otherwise  makes values that stand for them where they aren't known, in a rehearsal; without it these are zeros,
               which is what all is well reads
    """
    return x.tolist()


class Arriving:
    """A copy of a tensor on its way to the host: nothing waits before its values are asked for."""

    def __init__(self, x: Tensor) -> None:
        self.memory, self.event = x, None
        if x.device.type != "cpu":
            self.memory = torch.zeros(x.shape, dtype=x.dtype, pin_memory=True)
            self.memory.copy_(x, non_blocking=True)
            self.event = torch.Event(x.device)
            self.event.record()

    event: torch.Event | None

    def read(self) -> list:
        """Its values as nested lists; waits for the device where they haven't arrived."""
        if self.event is not None and not self.event.query():
            self.event.synchronize()
        return self.memory.tolist()


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's on the device, by pinned memory: the host goes on meanwhile."""
    if device.type == "cpu" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)
