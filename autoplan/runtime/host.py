"""What the host reads of a tensor on the device: it waits there until the device has come so far.

Whatever a step asks so goes through here, so that one place shows where a step stops, and a rehearsal, whose tensors
have no values, can answer.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def read(x: Tensor, otherwise: Callable[[], list] | None = None) -> list:
    """A tensor's values as nested lists.

    otherwise  makes values that stand for them where they aren't known, in a rehearsal; without it these are zeros,
               which is what all is well reads
    """
    return x.tolist()
