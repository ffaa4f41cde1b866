"""Buffers that forward changes: read as they were before, and written once the new value is there."""

import torch
from torch import Tensor


def read_buffer(buffer: Tensor) -> Tensor:
    """A copy: what reads it may keep it for the backward, while the buffer itself goes on changing."""
    return buffer.clone()


def update_buffer(buffer: Tensor, value: Tensor) -> Tensor:
    """Writes a value of the buffer's shape, R like the buffer on every axis, and gives it back."""
    with torch.no_grad():
        buffer.copy_(value)
    return value
