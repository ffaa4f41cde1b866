"""Dropout that doesn't depend on how a tensor is split.

Whether an element is dropped follows from a hash of the step's key, the call and the element's place in the whole
tensor. So replicas agree, shards differ, a recomputed forward drops the same elements, and any plan drops what one
device drops. A key is an ordinary tensor that comes with each microbatch, so there is no generator to keep in step.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over

_WORD = 0xFFFFFFFF


def step_keys(
    seed: int, step: int, microbatches: int, device: torch.device | str = "cpu", batch: int = 0
) -> Tensor:
    """The keys of one step's microbatches, int64 [microbatches, 2]: (a hash of seed and step, the microbatch).

    batch  which of the batches whose gradients are added up before the step
    """
    mixed = _mix((step & _WORD) ^ _mix(seed & _WORD))
    mixed = _mix(mixed ^ _mix(batch & _WORD)) if batch else mixed
    return torch.tensor([[mixed, number] for number in range(microbatches)], device=device)


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
    index = global_index(x.shape, dims, key.view(-1)[1], microbatch_dim, microbatches)
    keep = uniform_words(index, key.view(-1)[0], call) >= round(p * (_WORD + 1))
    return x * keep.to(x.dtype) * (1.0 / (1.0 - p) if p < 1 else 0.0)


def uniform(
    x: Tensor, number: int, *, key: Tensor, call: int, dims: Sequence[Sequence[MeshAxis]] = (),
    microbatch_dim: int | None = None, microbatches: int = 1,
) -> Tensor:  # fmt: skip
    """Numbers from 0 to below 1 in the shape and dtype of x, hashed as what ``dropout`` drops; ``number`` doesn't
    matter, a call has one of its own. As many bits as x's dtype holds, 32 at most."""
    index = global_index(x.shape, dims, key.view(-1)[1], microbatch_dim, microbatches)
    words = uniform_words(index, key.view(-1)[0], call)
    bits = min(32, round(-math.log2(torch.finfo(x.dtype).eps)))
    return (words >> (32 - bits)).to(x.dtype) * 2.0**-bits


def global_index(
    shape: Sequence[int], dims: Sequence[Sequence[MeshAxis]], microbatch: Tensor, microbatch_dim: int | None,
    microbatches: int,
) -> Tensor:  # fmt: skip
    """The place in the whole tensor, row-major, of each element of a part: int64 of the part's shape."""
    index = torch.zeros((), dtype=torch.int64, device=microbatch.device)
    for dim, size in enumerate(shape):
        place, ways = index_over(dims[dim] if dims else ())
        along, whole = torch.arange(size, device=microbatch.device) + place * size, ways * size
        if dim == microbatch_dim:
            along, whole = along + microbatch * whole, whole * microbatches
        index = index * whole + along.view(-1, *[1] * (len(shape) - 1 - dim))
    return index.expand(tuple(shape))


def uniform_words(index: Tensor, key: Tensor, call: int) -> Tensor:
    """32 hashed bits for each place, as int64: two rounds of the finaliser of MurmurHash3 (Appleby 2011)."""
    stream = _mix((key + call * 0x9E3779B9) & _WORD)
    return _mix((index & _WORD) ^ _mix((index >> 32) ^ stream))


Word = TypeVar("Word", int, Tensor)


def _mix(word: Word) -> Word:
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _WORD
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _WORD
    return word ^ (word >> 16)
