"""A checkpoint's tensors, whole, read without any process group; and what sets two checkpoints apart."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from autoplan.runtime.checkpoint.bytes import read_chunk
from autoplan.runtime.checkpoint.index import read_index
from autoplan.runtime.checkpoint.state_json import complete


def tensors(folder: str | os.PathLike) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its key; an error where any part of it can't be read, or has changed since."""
    source, state = complete(Path(folder))
    found = {}
    for key, tensor in read_index(source, state.tensors, state.files).items():
        found[key] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        for chunk in tensor.chunks:
            box = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
            found[key][box] = read_chunk(source, key, tensor, chunk)
    return found


def differences(one: str | os.PathLike, other: str | os.PathLike) -> list[str]:
    """The keys whose tensors aren't the same bit for bit, or which only one has."""
    a, b = tensors(one), tensors(other)
    alike = {key for key in a.keys() & b.keys() if torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype}
    return sorted((a.keys() | b.keys()) - alike)


def largest_difference(one: str | os.PathLike, other: str | os.PathLike, prefix: str = "parameters/") -> float:
    """Of the tensors under a prefix, relative to each one's largest value."""
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    found = [(a[k] - b[k]).abs().max() / b[k].abs().max().clamp(min=1e-30) for k in a if k.startswith(prefix)]
    return float(torch.stack(found).max())
