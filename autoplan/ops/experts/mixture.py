"""Each token through its experts, as one operator with its gradient, opaque to torch.compile.

    result[t] = Σ_j scores[t, j] · down[i] · activation(first[0][i] · hidden[t], …),   i = index[t, j]

How many tokens an expert gets depends on values, so the shapes inside do too; outside none does. No token is dropped
and nothing is padded. An index that names no expert of the operands adds nothing: a rank that has some of the experts
is called with all tokens, indices counted from its first expert, and gives its summand of the result.

The backward reads the first products and what the activation makes of them, some rows of an expert's inner dim for each
of a token's choices. They are most of what a layer keeps. Where memory is short the activation is computed again, or
the first products are, too, from tokens, indices and scores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.ops.experts.activation import value_and_gradients, value_and_made
from autoplan.ops.experts.gradient import Plain, as_rows, register_gradient
from autoplan.ops.experts.grouped import Inside, WeightGradients, Weights, backward_of_rows, cast, forward, kept_like

OPERANDS = "Tensor hidden, Tensor index, Tensor scores, Tensor[] first, Tensor down, Tensor[] biases"
SETTINGS = "str activation, bool transposed, bool complete, bool keep, bool keep_activated"
SCHEMA = f"({OPERANDS}, {SETTINGS}) -> (Tensor, Tensor[])"
BACKWARD = f"(Tensor gradient, {OPERANDS}, Tensor[] kept, {SETTINGS}) -> Tensor[]"


def experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool = False, keep: bool = True, keep_activated: bool = True,
) -> Tensor:  # fmt: skip
    """hidden [.., h], index and scores [.., k] or [tokens, k] -> [.., o].

    first       (gate, up), (gate and up interleaved,) or (up,): [experts, f, h] each, [experts, h, f] if ``transposed``
                or none, and the activation is of the tokens themselves
    down        [experts, o, f], or [experts, f, o]
    biases      of the first products, [experts, f] each; none
    activation  text over gate and up, or over x where there are fewer first products
    complete    whether every index names an expert
    keep        the first products for the backward; else it computes them again, and the activation
    keep_activated  likewise what the activation makes of the first products
    """
    lead, flat = hidden.shape[:-1], as_rows(hidden, index, scores)
    settings = (activation, transposed, complete, *kept_of(keep, keep_activated))
    if torch.compiler.is_compiling():
        result, _ = torch.ops.autoplan.experts(*flat, list(first), down, list(biases), *settings)
    else:
        result = Plain.apply(run, run_back, settings, len(first), *flat, down, *first, *biases)
    return result.reshape(*lead, result.shape[-1])


def kept_of(products: bool, activated: bool) -> tuple[bool, bool]:
    """Of these the ones that are kept: what the activation makes beside the products, and nothing where no backward
    comes."""
    products = products and torch.is_grad_enabled()
    return products, products and activated


def names_of(first: Sequence[object]) -> tuple[str, ...]:
    """What the activation's text calls the first products."""
    return ("gate", "up") if len(first) == 2 else ("x",)


def run_forward(
    hidden: Tensor, index: Tensor, scores: Tensor, weights: Weights, activation: str, count: int | None = None,
    at_most: bool = False, keep_activated: bool = True,
) -> tuple[Tensor, Inside]:  # fmt: skip
    """[tokens, o], and what the backward reads; ``count``: how many of the indices name an expert, where that is
    known, or how many do ``at_most``."""
    inside = Inside.of(hidden, index, scores, weights, count, at_most)
    function = value_and_made(activation, names_of(weights.first), keep_activated)
    result, inside = forward(inside, weights, function, index.shape)
    return cast(result, hidden.dtype), inside


def run_backward(
    gradient: Tensor, hidden: Tensor, inside: Inside, weights: Weights, activation: str, shape: Sequence[int]
) -> list[Tensor]:  # fmt: skip
    """Gradients of hidden, scores, down, each of first, each of biases; ``shape``: of the indices."""
    d_hidden, d_scores, further = run_backward_of_rows(gradient, hidden, inside, weights, activation, shape)
    return [d_hidden, d_scores, *further.gradients()]


def run_backward_of_rows(
    gradient: Tensor, hidden: Tensor, inside: Inside, weights: Weights, activation: str, shape: Sequence[int]
) -> tuple[Tensor, Tensor, WeightGradients]:
    """Gradients of hidden and scores, for which other ranks may wait, and what gives those of the weights."""
    through = value_and_gradients(activation, names_of(weights.first))
    return backward_of_rows(gradient, hidden, inside, weights, through, shape)


def run(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool, keep_activated: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The result, and what is kept of it (``Inside.kept``)."""
    weights, count = Weights(first, down, biases, transposed), index.numel() if complete else None
    result, inside = run_forward(hidden, index, scores, weights, activation, count, False, keep_activated)
    return result, inside.kept if keep else []


def run_back(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], kept: Sequence[Tensor], activation: str, transposed: bool, complete: bool, keep: bool,
    keep_activated: bool,
) -> list[Tensor]:  # fmt: skip
    weights = Weights(first, down, biases, transposed)
    if kept:
        inside = Inside.again(kept, hidden, weights)
    else:
        inside = Inside.of(hidden, index, scores, weights, index.numel() if complete else None)
    return run_backward(gradient, hidden, inside, weights, activation, index.shape)


_experts = torch.library.custom_op("autoplan::experts", run, mutates_args=(), schema=SCHEMA)
_backward = torch.library.custom_op("autoplan::experts_backward", run_back, mutates_args=(), schema=BACKWARD)
register_gradient(_experts, torch.ops.autoplan.experts_backward)


@_experts.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool, keep_activated: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    weights = Weights(first, down, biases, transposed)
    function = value_and_made(activation, names_of(first), keep_activated)
    kept = kept_like(index.numel(), hidden, index, scores, weights, function, complete) if keep else []
    return hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1]), kept


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], *_: object,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]
