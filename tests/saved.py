"""A checkpoint's tensors, whole, read without any process group; and what sets two checkpoints apart."""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def tensors(folder: str | os.PathLike) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its key; an error where any part of it can't be read."""
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {
        key: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for key, entry in saved.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is no process group, as is meant
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


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
