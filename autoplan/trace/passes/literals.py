"""Tensors of numbers that forward writes down, as operators that make them: torch.tensor([0.485, 0.456, 0.406])."""

import torch
from torch import Tensor

from autoplan.ir.graph import DType, Ref
from autoplan.trace.builder import Builder, type_of

MOST = 64  # stretches of one number, each an operator


def literal(b: Builder, value: Tensor) -> Ref | None:
    """A full, an arange, or stretches of one number put together; None where that would be too many."""
    kind, flat = type_of(value), value.detach().flatten()
    if value.is_complex():
        return None
    if not flat.numel():
        return b.full(kind.shape, 0, kind.dtype)
    runs, counts = torch.unique_consecutive(flat, return_counts=True)
    if len(runs) == 1:
        return b.full(kind.shape, runs[0].item(), kind.dtype)
    if not value.is_floating_point() and value.dtype != torch.bool and steady(flat):
        start, step = int(flat[0]), int(flat[1]) - int(flat[0])
        stop = start + step * flat.numel()
        made = b.emit("aten.arange.start_step", start, stop, step, kwargs=(("dtype", DType(kind.dtype)),))
        return b.reshape(made, kind.shape)
    if len(runs) > MOST:
        return None
    pairs = zip(runs.tolist(), counts.tolist(), strict=True)
    parts = tuple(b.full((count,), number, kind.dtype) for number, count in pairs)
    return b.reshape(b.emit("aten.cat.default", parts, 0, hint="numbers"), kind.shape)


def steady(numbers: Tensor) -> bool:
    """Whether each is as much more than the one before."""
    steps = numbers[1:].to(torch.int64) - numbers[:-1].to(torch.int64)
    return bool((steps == steps[0]).all())
