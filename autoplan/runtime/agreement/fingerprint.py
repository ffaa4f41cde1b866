"""A hash of tensors' values, where they lie, in exact integer arithmetic: the same bits give the same everywhere.

Each row of 32-bit words is hashed multilinearly modulo 2^64 with weights drawn once (Carter & Wegman 1979; Lemire &
Kaser 2014, "Strongly universal string hashing is fast"): two rows that differ collide with a probability of at most
2^-32, over the draw of the weights. Rows are then mixed with their places (splitmix64, Steele et al. 2014) and added
up, so two different tensors have the same hash with a probability of about 2^-32 at most, and swapped rows count.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

WORDS = 4096                # in a row
AT_ONCE = 256               # rows that are multiplied at once: 8 MiB of products
POSITIVE = (1 << 62) - 1    # hashes are from 0 to this, so that they have a negative
GOLDEN = -7046029254386353131   # 0x9E3779B97F4A7C15 as a signed number
FACTORS = ((30, -4658895280553007687), (27, -7723592293110705685))  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
Words = TypeVar("Words", Tensor, np.ndarray)


class Fingerprint:
    """The hash function; every rank has the same one.

    device  where hashes of what lies on one are put; each tensor is hashed on its own: by NumPy in the host's memory,
            where a call costs less than torch's
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.drawn: dict[torch.device, Tensor] = {}
        self.in_memory: np.ndarray | None = None

    def weights(self, device: torch.device) -> Tensor:
        """int64 [WORDS], made when first asked for: a program of one rank never does."""
        if device not in self.drawn:
            generator = torch.Generator().manual_seed(0x5EED)
            drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (WORDS,), dtype=torch.int64, generator=generator)
            self.drawn[device] = drawn.to(device)
        return self.drawn[device]

    def weights_in_memory(self) -> np.ndarray:
        if self.in_memory is None:
            self.in_memory = self.weights(torch.device("cpu")).numpy()
        return self.in_memory

    def of(self, tensors: Iterable[Tensor]) -> int | Tensor:
        """From 0 to 2^62 - 1, of tensors in their order; of none it is 0. An int64 [] where any lies on a device."""
        given = list(tensors)
        if all(tensor.device.type == "cpu" for tensor in given):
            weights = self.weights_in_memory()
            each = [row for tensor in given for row in rows_of(words_in_memory(tensor), weights)]
            joined = np.concatenate(each) if each else np.empty(0, np.int64)
            found = int(mixed(joined + GOLDEN * np.arange(1, len(joined) + 1)).sum())
            return found & POSITIVE
        rows = [r for t in given for r in rows_of(words_of(t), self.weights(t.device))]
        values = torch.cat([row.to(self.device) for row in rows])
        places = torch.arange(1, len(values) + 1, device=values.device)
        return mixed(values + GOLDEN * places).sum() & POSITIVE


def rows_of(words: Words, weights: Words) -> Iterator[Words]:
    """The rows' own hashes, a few at once; what is left at the end counts as a row."""
    whole = len(words) // WORDS
    if whole:
        rows = words[: whole * WORDS].reshape(whole, WORDS)
        yield from ((rows[i : i + AT_ONCE] * weights).sum(1) for i in range(0, whole, AT_ONCE))
    rest = words[whole * WORDS :]
    yield (rest * weights[: len(rest)]).reshape(1, -1).sum(1)


def words_in_memory(tensor: Tensor) -> np.ndarray:
    """The same of a tensor in the host's memory, by NumPy alone where it has the dtype."""
    if tensor.dtype not in (torch.int64, torch.int32, torch.float32, torch.float64):
        return words_of(tensor).numpy()
    return np.ascontiguousarray(tensor.numpy(force=tensor.requires_grad)).reshape(-1).view(np.int32)


def words_of(tensor: Tensor) -> Tensor:
    """A tensor's bits as int32 words, the last of them filled up with zeros."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.element_size() % 4 == 0:
        return flat.view(torch.int32)
    flat = flat.view(torch.uint8)
    missing = -flat.numel() % 4
    return (pad(flat, (0, missing)) if missing else flat).view(torch.int32)


def mixed(x: Words) -> Words:
    """Each value mixed, by splitmix64's finaliser modulo 2^64; >> keeps the sign, so what it shifts in is masked
    away."""
    for shift, factor in FACTORS:
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * factor
    return x ^ (x >> 31 & (1 << 33) - 1)
