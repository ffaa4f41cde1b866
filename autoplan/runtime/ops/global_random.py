"""Dropout that doesn't depend on how a tensor is split.

Whether an element is dropped follows from a hash of the step's key, the call and the element's place in the whole
tensor. So replicas agree, shards differ, a recomputed forward drops the same elements, and any plan drops what one
device drops. A key is an ordinary tensor that comes with each microbatch, so there is no generator to keep in step.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.ops import dropout as hashed
from autoplan.runtime import host
from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over

_WORD = 0xFFFFFFFF
_START = 0x9E3779B9  # the finaliser leaves 0 as it is: by itself, seed 0 would give step 0 a key of 0


def step_keys(
    seed: int, step: int, microbatches: int, device: torch.device | str = "cpu", batch: int = 0
) -> Tensor:
    """The keys of one step's microbatches, int64 [microbatches, 2]: (a hash of seed and step, the microbatch).

    batch  which of the batches whose gradients are added up before the step
    """
    mixed = _mix((step & _WORD) ^ _mix((seed & _WORD) ^ _mix(seed >> 32 & _WORD) ^ _START))
    mixed = _mix(mixed ^ _mix(batch & _WORD)) if batch else mixed
    keys = torch.tensor([[mixed, number] for number in range(microbatches)])
    return host.to_device(keys, torch.device(device))  # made there, it would wait for the device


def dropout(
    x: Tensor, p: float, *, key: Tensor, call: int, dims: Sequence[Sequence[MeshAxis]] = (),
    microbatch_dim: int | None = None, microbatches: int = 1,
) -> Tensor:  # fmt: skip
    """x with each element zeroed with probability p and the others divided by 1 - p.

    key   one row of ``step_keys``, int64 [2] or [1, 2]
    call  the number of this dropout in the model, different for each
    dims  for each dim of x the axes that split it, outermost first; () where none is split
    microbatch_dim  the dim that is split into microbatches (they come before all axes); None where x isn't
    microbatches    how many they are
    """
    key = key if key.ndim == 1 else key.view(-1)
    return hashed.dropout(x, p, key, call, places_of(x.shape, dims, microbatch_dim, microbatches))


def uniform(
    x: Tensor, number: int, *, key: Tensor, call: int, dims: Sequence[Sequence[MeshAxis]] = (),
    microbatch_dim: int | None = None, microbatches: int = 1,
) -> Tensor:  # fmt: skip
    """Numbers from 0 to below 1 in the shape and dtype of x, hashed as what ``dropout`` drops; ``number`` doesn't
    matter, a call has one of its own. As many bits as x's dtype holds, 32 at most. The key may lie on the host, where
    ``dropout_by_rank`` takes it."""
    places = places_of(x.shape, dims, microbatch_dim, microbatches)
    words = hashed.words_of(key.view(-1).to(x.device, non_blocking=True), call, places)
    bits = min(32, round(-math.log2(torch.finfo(x.dtype).eps)))
    return ((words.to(torch.int64) & _WORD) >> (32 - bits)).to(x.dtype) * 2.0**-bits


def places_of(
    shape: Sequence[int], dims: Sequence[Sequence[MeshAxis]], microbatch_dim: int | None, microbatches: int
) -> hashed.Places:
    """Where the part of this rank lies in the whole tensor."""
    found = [index_over(axes) for axes in dims] if dims else [(0, 1)] * len(shape)
    sizes = [size * ways for size, (_, ways) in zip(shape, found, strict=True)]
    parted = [dim == microbatch_dim for dim in range(len(shape))]
    return hashed.Places(
        shape=tuple(shape),
        first=tuple(size * place for size, (place, _) in zip(shape, found, strict=True)),
        whole=tuple(size * (microbatches if part else 1) for size, part in zip(sizes, parted, strict=True)),
        stride=tuple(size if part else 0 for size, part in zip(sizes, parted, strict=True)),
    )


def _mix(word: int) -> int:
    """The finaliser of MurmurHash3 (Appleby 2011)."""
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _WORD
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _WORD
    return word ^ (word >> 16)
