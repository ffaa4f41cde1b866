"""Dropout by a hash of each element's place in the whole tensor, as one operator that keeps nothing but its key.

The trailing dims are columns, as few of them as have ``LEAST`` places; the others are rows. A row has two words of 32
bits and a column one; an element's word is their mix: the finaliser "lowbias32" (Wellons 2018), with the row's second
word put in on the way. So an element costs eight operations on 32 bits, and p is exact to 2**-32. The backward hashes
anew: the operator is linear, and drops the same of its gradient.

On the CPU NumPy runs it, block by block within the cache. For accelerators it is written in torch, which torch.compile
fuses into one kernel. Both give the same words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST = 256
BLOCK = 1 << 15  # elements that are hashed at once
WORD = 0xFFFFFFFF
GOLDEN, MIX, MIX_AGAIN, ROW, HIGH = 0x9E3779B9, 0x7FEB352D, 0x846CA68B, 0xC2B2AE35, 0x27D4EB2F
SCHEMA = "(Tensor x, float p, Tensor key, int call, int[] first, int[] whole, int[] stride) -> Tensor"
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Places:
    """Which places of a whole tensor a part holds.

    shape   of the part
    first   its first place along each dim, in microbatch 0
    whole   the whole tensor's sizes
    stride  places along each dim from one microbatch to the next
    """

    shape: Sequence[int]
    first: Sequence[int]
    whole: Sequence[int]
    stride: Sequence[int]

    @property
    def cut(self) -> int:
        """The first of the columns' dims; the same for every part of a whole."""
        dim = max(0, len(self.whole) - 1)
        while dim and math.prod(self.whole[dim:]) < LEAST:
            dim -= 1
        return dim

    def index(self, dims: range, microbatch: Any, arange: Callable[[int], Any]) -> Any:
        """Places along some dims, row-major, folded into 32 bits: int64 with dims that together are these.

        arange      of a size, int64
        microbatch  its number: an integer, or a tensor
        """
        index, wholes = None, 1
        for size, first, whole, stride in self.merged(dims):
            places = arange(size) + first if first else arange(size)
            if stride:
                places = places + microbatch * stride
            index = places if index is None else index[..., None] * whole + places
            wholes *= whole
        if index is None:
            return arange(1)
        return (index ^ (index >> 32) * HIGH) & WORD if wholes > WORD else index

    def merged(self, dims: range) -> list[tuple[int, ...]]:
        """(size, first place, whole size, stride) of these dims, those that the part has whole merged with the one
        before: there are as many steps as dims that are split."""
        found: list[tuple[int, ...]] = []
        for dim in dims:
            each = (self.shape[dim], self.first[dim], self.whole[dim], self.stride[dim])
            if found and self.shape[dim] == self.whole[dim] and not self.stride[dim]:
                found[-1] = tuple(value * self.whole[dim] for value in found[-1])
            else:
                found.append(each)
        return found


def dropout(x: Tensor, p: float, key: Tensor, call: int, places: Places) -> Tensor:
    """x with each element zeroed with probability p and the others divided by 1 - p; nothing else is kept.

    key   int64 [2]: the step's, and the microbatch
    call  the number of this dropout in the model
    """
    where = (list(places.first), list(places.whole), list(places.stride))
    return _Dropout.apply(x, p, key, call, *where)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, p: float, key: Tensor, call: int, first: list[int], whole: list[int], stride: list[int]
    ) -> Tensor:
        ctx.save_for_backward(key)
        ctx.given = (p, call, first, whole, stride)
        return dropped(x, p, key, call, first, whole, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        p, call, *where = ctx.given
        return dropped(gradient, p, *ctx.saved_tensors, call, *where), *[None] * 6


def dropped(x: Tensor, p: float, key: Tensor, call: int, *where: list[int]) -> Tensor:
    if x.device.type == "cpu" and x.element_size() in INTEGERS:
        return torch.ops.autoplan.hashed_dropout(x, p, key, call, *where)
    return dropped_at_once(x, p, key, call, Places(x.shape, *where))


torch.library.define("autoplan::hashed_dropout", SCHEMA)


@torch.library.impl("autoplan::hashed_dropout", "CPU")
def _hashed(
    x: Tensor, p: float, key: Tensor, call: int, first: list[int], whole: list[int], stride: list[int]
) -> Tensor:
    return dropped_in_blocks(x, p, key, call, Places(x.shape, first, whole, stride))


@torch.library.register_fake("autoplan::hashed_dropout")
def _(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def scale_of(p: float) -> float:
    return 1.0 / (1.0 - p) if p < 1 else 0.0


def dropped_at_once(x: Tensor, p: float, key: Tensor, call: int, places: Places) -> Tensor:
    """In torch, on the whole part."""
    least = min(round(p * (WORD + 1)), WORD)
    words = halves_of(key, call, places) ^ -(1 << 31)  # signed words order as unsigned ones do
    return torch.where(words >= least - (1 << 31), x * scale_of(p), 0.0)


def words_of(key: Tensor, call: int, places: Places) -> Tensor:
    """The word of each element, int32 of the part's shape."""
    word = halves_of(key, call, places)
    return word ^ (word >> 16 & 0xFFFF)


def halves_of(key: Tensor, call: int, places: Places) -> Tensor:
    """Words whose upper halves alone are mixed: enough to compare with p, of which the lower ones decide ties."""
    stream = mixed((key[0] + call * GOLDEN).to(torch.int32))

    def words(dims: range) -> Tensor:
        return places.index(dims, key[1], lambda size: torch.arange(size, device=key.device)).to(torch.int32)

    rank, cut = len(places.shape), places.cut
    row = words(range(cut)).reshape([*places.shape[:cut], *[1] * (rank - cut)])
    column = words(range(cut, rank)).reshape(places.shape[cut:]) * signed(GOLDEN)
    return upper_mixed(column ^ mixed(row ^ stream), row * signed(ROW) + stream)


def mixed(word: Tensor) -> Tensor:
    """lowbias32 of int32 words, which torch multiplies modulo 2**32."""
    word = upper_mixed(word, 0)
    return word ^ (word >> 16 & 0xFFFF)


def upper_mixed(word: Tensor, between: Tensor | int) -> Tensor:
    """The same but for its last step; ``between``: words put in after its first half."""
    word = (word ^ (word >> 16 & 0xFFFF)) * signed(MIX) ^ between
    return (word ^ (word >> 15 & 0x1FFFF)) * signed(MIX_AGAIN)


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def dropped_in_blocks(x: Tensor, p: float, key: Tensor, call: int, places: Places) -> Tensor:
    """In NumPy, block by block."""
    result = torch.mul(x, scale_of(p)).contiguous()
    if not result.numel():
        return result
    step, microbatch = key.tolist()
    rows, between, columns = numpy_words(step, call, microbatch, places)
    values = elements(result).reshape(len(rows), len(columns))
    wide = min(len(columns), BLOCK)
    high = min(max(1, BLOCK // wide), len(rows))
    words, shifted = np.empty((2, high, wide), np.uint32)
    least = min(round(p * (WORD + 1)), WORD)
    for top in range(0, len(rows), high):
        for left in range(0, len(columns), wide):
            part = values[top : top + high, left : left + wide]
            word, other = (w[: part.shape[0], : part.shape[1]] for w in (words, shifted))
            np.bitwise_xor(columns[None, left : left + wide], rows[top : top + high, None], out=word)
            mix_upper_in_place(word, other, between[top : top + high, None])
            np.multiply(part, word >= least, out=part)
    return result


def elements(x: Tensor) -> np.ndarray:
    """A tensor's memory as unsigned words: multiplied by 0 or 1 they are 0 or what they were, infinities too."""
    size = x.element_size()
    return x.detach().view(INTEGERS[size]).numpy().view(f"u{size}")


def numpy_words(step: int, call: int, microbatch: int, places: Places) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first and second words of the rows, words of the columns), uint32."""
    stream = np.uint32(mixed_word((step + call * GOLDEN) & WORD))

    def words(dims: range) -> np.ndarray:
        return places.index(dims, microbatch, np.arange).astype(np.uint32).reshape(-1)

    rank, cut = len(places.shape), places.cut
    row, column = words(range(cut)), words(range(cut, rank))
    first = row ^ stream
    mix_in_place(first, np.empty_like(first))
    return first, row * np.uint32(ROW) + stream, column * np.uint32(GOLDEN)


def mixed_word(word: int) -> int:
    """``mixed`` of one word."""
    word = ((word ^ word >> 16) * MIX) & WORD
    word = ((word ^ word >> 15) * MIX_AGAIN) & WORD
    return word ^ word >> 16


def mix_in_place(word: np.ndarray, other: np.ndarray) -> None:
    """``mixed`` of uint32 words, in place; ``other``: memory of their size."""
    mix_upper_in_place(word, other, np.uint32(0))
    np.right_shift(word, 16, out=other)
    np.bitwise_xor(word, other, out=word)


def mix_upper_in_place(word: np.ndarray, other: np.ndarray, between: np.ndarray | np.uint32) -> None:
    np.right_shift(word, 16, out=other)
    np.bitwise_xor(word, other, out=word)
    np.multiply(word, np.uint32(MIX), out=word)
    np.bitwise_xor(word, between, out=word)
    np.right_shift(word, 15, out=other)
    np.bitwise_xor(word, other, out=word)
    np.multiply(word, np.uint32(MIX_AGAIN), out=word)
