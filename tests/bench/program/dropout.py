"""CPU seconds of dropout, forward and backward: the program's operator beside ``F.dropout``, on one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autoplan.runtime.ops.global_random import dropout, step_keys

P, COLUMNS, ROUNDS = 0.1, 1000, 15
SIZES = (10**5, 10**6, 10**7)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Pair:
    """Nanoseconds an element of both, alternating: the median of each."""

    elements: int
    dtype: str
    ours: float
    torchs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.torchs


def timed() -> list[Pair]:
    return [pair(size, dtype) for size in SIZES for dtype in DTYPES]


def pair(elements: int, dtype: torch.dtype) -> Pair:
    torch.set_num_threads(1)
    x = torch.randn(elements // COLUMNS, COLUMNS, dtype=dtype, requires_grad=True)
    gradient, key = torch.ones_like(x), step_keys(0, 0, 1)[0]
    both: tuple[Callable[[Tensor], Tensor], ...] = (lambda t: dropout(t, P, key=key, call=1), lambda t: F.dropout(t, P))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for function, found in zip(both, seconds, strict=True):
            start = time.process_time()
            torch.autograd.grad(function(x), x, gradient)
            found.append(time.process_time() - start)
    ours, torchs = (statistics.median(found) / elements * 1e9 for found in seconds)
    return Pair(elements, str(dtype).removeprefix("torch."), ours, torchs)
