"""Tensors of numbers that forward writes down, as operators that make them: torch.tensor([0.485, 0.456, 0.406])."""

from itertools import groupby, pairwise

import torch
from torch import Tensor

from autoplan.ir.graph import DType, Ref
from autoplan.trace.builder import Builder, type_of

MOST = 64  # stretches of one number, each an operator


def literal(b: Builder, value: Tensor) -> Ref | None:
    """A full, an arange, or stretches of one number put together; None where that would be too many."""
    kind, numbers = type_of(value), value.flatten().tolist()
    if value.is_complex():
        return None
    if not numbers:
        return b.full(kind.shape, 0, kind.dtype)
    runs = [(number, len(list(same))) for number, same in groupby(numbers)]
    if len(runs) == 1:
        return b.full(kind.shape, numbers[0], kind.dtype)
    if not value.is_floating_point() and value.dtype != torch.bool and steady(numbers):
        step = numbers[1] - numbers[0]
        made = b.emit(
            "aten.arange.start_step", numbers[0], numbers[-1] + step, step, kwargs=(("dtype", DType(kind.dtype)),)
        )
        return b.reshape(made, kind.shape)
    if len(runs) > MOST:
        return None
    parts = tuple(b.full((count,), number, kind.dtype) for number, count in runs)
    return b.reshape(b.emit("aten.cat.default", parts, 0, hint="numbers"), kind.shape)


def steady(numbers: list[int]) -> bool:
    """Whether each is as much more than the one before."""
    return len({after - before for before, after in pairwise(numbers)}) == 1
