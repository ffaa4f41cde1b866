"""Each token through its experts, as one operator with its gradient, opaque to torch.compile.

    result[t] = Σ_j scores[t, j] · down[i] · activation(first[0][i] · hidden[t], …),   i = index[t, j]

How many tokens an expert gets depends on values, so the shapes inside do too; outside none does. No token is dropped
and nothing is padded. An index that names no expert of the operands adds nothing: a rank that has some of the experts
is called with all tokens, indices counted from its first expert, and gives its summand of the result.

The backward reads the first products, two or three rows of an expert's inner dim for each of a token's choices. They
are most of what a layer keeps: where memory is short they are computed again, from tokens, indices and scores.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoplan.ops.experts.activation import activation_function, value_and_gradients
from autoplan.ops.experts.grouped import Inside, Weights, backward, cast, forward, kept_like

OPERANDS = "Tensor hidden, Tensor index, Tensor scores, Tensor[] first, Tensor down, Tensor[] biases"
SETTINGS = "str activation, bool transposed"
SCHEMA = f"({OPERANDS}, {SETTINGS}, bool complete, bool keep) -> (Tensor, Tensor[])"
BACKWARD = f"(Tensor gradient, {OPERANDS}, Tensor[] kept, {SETTINGS}, bool complete) -> Tensor[]"


def experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool = False, keep: bool = True,
) -> Tensor:  # fmt: skip
    """hidden [.., h], index and scores [.., k] -> [.., o].

    first       (gate, up), (gate and up interleaved,) or (up,): [experts, f, h] each, [experts, h, f] if ``transposed``
    down        [experts, o, f], or [experts, f, o]
    biases      of the first products, [experts, f] each; none
    activation  text over gate and up, or over x where there is one first product (``activation_function``)
    complete    whether every index names an expert
    keep        the first products for the backward; else it computes them again
    """
    lead, choices = hidden.shape[:-1], index.shape[-1]
    flat = (hidden.reshape(-1, hidden.shape[-1]), index.reshape(-1, choices), scores.reshape(-1, choices))
    weights = (list(first), down, list(biases))
    result, _ = torch.ops.autoplan.experts(*flat, *weights, activation, transposed, complete, keep)
    return result.reshape(*lead, result.shape[-1])


def names_of(first: Sequence[Tensor]) -> tuple[str, ...]:
    """What the activation's text calls the first products."""
    return ("gate", "up") if len(first) == 2 else ("x",)


def run_forward(
    hidden: Tensor, index: Tensor, scores: Tensor, weights: Weights, activation: str, count: int | None = None
) -> tuple[Tensor, Inside]:
    """[tokens, o], and what the backward reads; ``count``: how many of the indices name an expert, where that is
    known."""
    inside = Inside.of(hidden, index, scores, weights, count)
    function = activation_function(activation, names_of(weights.first))
    result, inside = forward(inside, weights, function, index.shape)
    return cast(result, hidden.dtype), inside


def run_backward(
    gradient: Tensor, hidden: Tensor, inside: Inside, weights: Weights, activation: str, shape: Sequence[int]
) -> list[Tensor]:
    """Gradients of hidden, scores, down, each of first, each of biases; ``shape``: of the indices."""
    through = value_and_gradients(activation, names_of(weights.first))
    return backward(gradient, hidden, inside, weights, through, shape)


@torch.library.custom_op("autoplan::experts", mutates_args=(), schema=SCHEMA)
def _experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The result, and what is kept of it (``Inside.kept``)."""
    weights = Weights(first, down, biases, transposed)
    result, inside = run_forward(hidden, index, scores, weights, activation, index.numel() if complete else None)
    return result, inside.kept if keep else []


@_experts.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    weights = Weights(first, down, biases, transposed)
    kept = kept_like(index.numel(), hidden, index, scores, weights, complete) if keep else []
    return hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1]), kept


@torch.library.custom_op("autoplan::experts_backward", mutates_args=(), schema=BACKWARD)
def _backward(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], kept: Sequence[Tensor], activation: str, transposed: bool, complete: bool,
) -> list[Tensor]:  # fmt: skip
    weights = Weights(first, down, biases, transposed)
    if kept:
        inside = Inside.again(kept, hidden, weights)
    else:
        inside = Inside.of(hidden, index, scores, weights, index.numel() if complete else None)
    return run_backward(gradient, hidden, inside, weights, activation, index.shape)


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], kept: Sequence[Tensor], activation: str, transposed: bool, complete: bool,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, list[Tensor]]) -> None:
    hidden, index, scores, first, down, biases, *ctx.settings, _ = inputs
    ctx.first, ctx.biases = len(first), len(biases)
    ctx.mark_non_differentiable(*output[1])
    ctx.set_materialize_grads(False)  # of what is kept there are none
    ctx.save_for_backward(hidden, index, scores, down, *first, *biases, *output[1])


def _gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple:
    hidden, index, scores, down, *rest = ctx.saved_tensors
    first, biases, kept = rest[: ctx.first], rest[ctx.first :][: ctx.biases], rest[ctx.first + ctx.biases :]
    d_hidden, d_scores, d_down, *found = torch.ops.autoplan.experts_backward(
        gradient, hidden, index, scores, first, down, biases, kept, *ctx.settings
    )
    return d_hidden, None, d_scores, found[: ctx.first], d_down, found[ctx.first :], None, None, None, None


_experts.register_autograd(_gradients, setup_context=_keep)
