"""A linear recurrence as one operator with its gradient, opaque to torch.compile.

    state[t] = factor[t] · state[t - 1] + added[t],   state[-1] = 0

element by element: what state-space models and gated linear recurrences compute along a sequence. As single operators
it would be a multiplication and an addition for each place of the sequence. Of the backward

    g[t] = d state[t] + factor[t + 1] · g[t + 1],   d added = g,   d factor[t] = g[t] · state[t - 1]

only factors and states are needed.
"""

from typing import Any

import torch
from torch import Tensor

SCHEMA = "(Tensor factor, Tensor added, int dim) -> Tensor"
BACKWARD = "(Tensor gradient, Tensor factor, Tensor states, int dim) -> Tensor[]"


def recurrence(factor: Tensor, added: Tensor, dim: int) -> Tensor:
    """factor and added of one shape -> the states along ``dim``, of that shape."""
    return torch.ops.autoplan.recurrence(factor, added, dim)


@torch.library.custom_op("autoplan::recurrence", mutates_args=(), schema=SCHEMA)
def _recurrence(factor: Tensor, added: Tensor, dim: int) -> Tensor:
    states = added.new_empty(added.shape)
    before: Tensor | None = None
    for scale, new, state in zip(factor.unbind(dim), added.unbind(dim), states.unbind(dim), strict=True):
        if before is None:
            state.copy_(new)
        else:
            torch.addcmul(new, scale, before, out=state)
        before = state
    return states


@_recurrence.register_fake
def _(factor: Tensor, added: Tensor, dim: int) -> Tensor:
    return added.new_empty(added.shape)


@torch.library.custom_op("autoplan::recurrence_backward", mutates_args=(), schema=BACKWARD)
def _backward(gradient: Tensor, factor: Tensor, states: Tensor, dim: int) -> list[Tensor]:
    """Gradients of factor and added."""
    d_added, d_factor = gradient.new_empty(gradient.shape), factor.new_empty(factor.shape)
    given, scales, found = gradient.unbind(dim), factor.unbind(dim), d_added.unbind(dim)
    for at in reversed(range(len(found))):
        if at + 1 == len(found):
            found[at].copy_(given[at])
        else:
            torch.addcmul(given[at], scales[at + 1], found[at + 1], out=found[at])
    length = states.shape[dim]
    d_factor.narrow(dim, 0, 1).zero_()
    later = (d_added.narrow(dim, 1, length - 1), states.narrow(dim, 0, length - 1))
    torch.mul(*later, out=d_factor.narrow(dim, 1, length - 1))
    return [d_factor, d_added]


@_backward.register_fake
def _(gradient: Tensor, factor: Tensor, states: Tensor, dim: int) -> list[Tensor]:
    return [factor.new_empty(factor.shape), gradient.new_empty(gradient.shape)]


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    factor, _, ctx.dim = inputs
    ctx.save_for_backward(factor, output)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    factor, states = ctx.saved_tensors
    d_factor, d_added = torch.ops.autoplan.recurrence_backward(gradient, factor, states, ctx.dim)
    return d_factor, d_added, None


_recurrence.register_autograd(_gradients, setup_context=_keep)
