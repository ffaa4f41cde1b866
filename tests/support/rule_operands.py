"""The operands of samples: small tensors, drawn from one seed."""

from __future__ import annotations

import torch
from torch import Tensor

from autoplan.ir.graph import Argument
from autoplan.rules.check.case import Sample

GENERATOR = torch.Generator().manual_seed(0)


def x(*shape: int) -> Tensor:
    """A tensor that carries a gradient."""
    return torch.randn(shape, dtype=torch.float64, generator=GENERATOR).requires_grad_()


def c(*shape: int) -> Tensor:
    """A constant."""
    return torch.randn(shape, dtype=torch.float64, generator=GENERATOR)


def positive(*shape: int) -> Tensor:
    return (c(*shape).abs() + 0.5).requires_grad_()


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=GENERATOR)


def bits(*shape: int) -> Tensor:
    return torch.randint(2, shape, generator=GENERATOR).bool()


def targets(high: int, *shape: int) -> Tensor:
    """Class numbers, some of them ignored."""
    return torch.where(torch.rand(shape, generator=GENERATOR) < 0.3, -100, ints(high, *shape))


def s(op: str, *args: Argument, **kwargs: Argument) -> Sample:
    return Sample(op, args, tuple(kwargs.items()))
