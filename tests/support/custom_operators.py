"""Operators of a user's own, by torch.library, as tests define them: without rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.library import CustomOpDef

from autoplan.rules.registry import registered


def custom(name: str, function: Callable[..., Tensor]) -> CustomOpDef:
    """An operator of torch.library that runs a function; its gradient is the function's."""
    op = torch.library.custom_op(f"tried::{name}", function, mutates_args=())
    op.register_fake(function)

    def keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.rest = [None if isinstance(x, Tensor) else x for x in inputs]

    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple:
        saved = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        wanted, remaining = [x for x in saved if x.requires_grad], iter(saved)
        with torch.enable_grad():
            y = function(*(next(remaining) if x is None else x for x in ctx.rest))
        found, remaining = iter(torch.autograd.grad(y, wanted, gradient)), iter(saved)
        return tuple(next(found) if x is None and next(remaining).requires_grad else None for x in ctx.rest)

    op.register_autograd(backward, setup_context=keep)
    return op


def _scale(x: Tensor, w: Tensor, k: float = 2.0) -> Tensor:
    return x * w * k


def _soft(x: Tensor) -> Tensor:
    return x.softmax(-1).clone()


def _mean_last(x: Tensor) -> Tensor:
    return x.mean(-1)


def _largest(x: Tensor) -> Tensor:
    return x.amax(-1)


def _product(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x) @ w


def _join(x: Tensor) -> Tensor:
    return x.flatten(-2).clone()


def _lookup(table: Tensor, ids: Tensor) -> Tensor:
    return table[ids]


def _centre(x: Tensor) -> Tensor:
    return x - x.mean()


scale = custom("scale", _scale)
soft = custom("soft", _soft)
mean_last = custom("mean_last", _mean_last)
largest = custom("largest", _largest)
product = custom("product", _product)
join = custom("join", _join)
lookup = custom("lookup", _lookup)
centre = custom("centre", _centre)


@torch.library.custom_op("tried::turned", mutates_args=())
def turned(x: Tensor, *, dim: int = 0, copy: bool = False) -> Tensor:
    """Arguments whose names mean something else in ATen."""
    return x.roll(1, dim) if copy else x.clone()


@turned.register_fake
def _(x: Tensor, *, dim: int = 0, copy: bool = False) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tried::leaky", mutates_args=())
def leaky(x: Tensor) -> Tensor:
    """Gradients that are right as a whole, and wrong on a part of a row."""
    return x.clone()


@leaky.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


leaky.register_autograd(lambda ctx, gradient: gradient * gradient.shape[-1] / 8)


@contextmanager
def rules_as_before() -> Iterator[None]:
    """Within it rules may be registered; afterwards there are those that there were."""
    with patch.dict("autoplan.rules.registry._RULES", dict(registered())):
        yield
