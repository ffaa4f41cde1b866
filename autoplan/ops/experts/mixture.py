"""Each token through its experts, as one operator with its gradient, opaque to torch.compile.

    result[t] = Σ_j scores[t, j] · down[i] · activation(first[0][i] · hidden[t], …),   i = index[t, j]

How many tokens an expert gets depends on values, so the shapes inside do too; outside none does. No token is dropped
and nothing is padded. An index that names no expert of the operands adds nothing: a rank that has some of the experts
is called with all tokens, indices counted from its first expert, and gives its summand of the result.

Where torch's grouped product serves (``grouped``), all experts run at once; else, as in float64, one after the other.

The backward keeps tokens, indices and scores alone and computes the first products again: what an expert keeps
otherwise, two or three rows of its inner dim for each of a token's choices, is most of what a layer keeps.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from autoplan.ops.experts import grouped
from autoplan.ops.experts.activation import activation_function, value_and_gradients

SCHEMA = (
    "(Tensor hidden, Tensor index, Tensor scores, Tensor[] first, Tensor down, Tensor[] biases, str activation, "
    "bool transposed) -> Tensor"
)
BACKWARD = SCHEMA.replace("(Tensor hidden", "(Tensor gradient, Tensor hidden").replace("-> Tensor", "-> Tensor[]")


def experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool,
) -> Tensor:  # fmt: skip
    """hidden [.., h], index and scores [.., k] -> [.., o].

    first       (gate, up), (gate and up interleaved,) or (up,): [experts, f, h] each, [experts, h, f] if ``transposed``
    down        [experts, o, f], or [experts, f, o]
    biases      of the first products, [experts, f] each; none
    activation  text over gate and up, or over x where there is one first product (``activation_function``)
    """
    lead, choices = hidden.shape[:-1], index.shape[-1]
    flat = (hidden.reshape(-1, hidden.shape[-1]), index.reshape(-1, choices), scores.reshape(-1, choices))
    result = torch.ops.autoplan.experts(*flat, list(first), down, list(biases), activation, transposed)
    return result.reshape(*lead, result.shape[-1])


def names_of(first: Sequence[Tensor]) -> tuple[str, ...]:
    """What the activation's text calls the first products."""
    return ("gate", "up") if len(first) == 2 else ("x",)


def chosen(index: Tensor, experts: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, tokens, which of their choices) of every expert that is chosen at all; one synchronisation."""
    flat = index.reshape(-1)
    ordered, order = torch.sort(flat, stable=True)
    bounds = torch.searchsorted(ordered, torch.arange(experts + 1, device=index.device)).tolist()
    for expert, (start, stop) in enumerate(pairwise(bounds)):
        if start < stop:
            places = order[start:stop]
            yield expert, places // index.shape[-1], places % index.shape[-1]


def as_linear(weight: Tensor, transposed: bool) -> Tensor:
    """One expert's weight as [out, in]."""
    return weight.t() if transposed else weight


def first_products(
    rows: Tensor, expert: int, first: Sequence[Tensor], biases: Sequence[Tensor], transposed: bool
) -> list[Tensor]:
    """What the activation reads: [rows, f] for each first weight."""
    products = [rows @ as_linear(weight[expert], transposed).t() for weight in first]
    return [p + bias[expert] for p, bias in zip(products, biases, strict=True)] if biases else products


def run_forward(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, count: int | None = None,
) -> Tensor:  # fmt: skip
    """[tokens, o]; ``count``: how many of the indices name an expert of the operands, where that is known."""
    function = activation_function(activation, names_of(first))
    if grouped.serves(hidden, [*first, down]):
        result = grouped.forward(hidden, index, scores, first, down, biases, function, transposed, count)
        return grouped.cast(result, hidden.dtype)
    wide = torch.promote_types(hidden.dtype, scores.dtype)
    total = hidden.new_zeros(hidden.shape[0], down.shape[2 if transposed else 1], dtype=wide)
    for expert, tokens, choice in chosen(index, down.shape[0]):
        inner = function(*first_products(hidden[tokens], expert, first, biases, transposed))
        rows = inner @ as_linear(down[expert], transposed).t()
        total.index_add_(0, tokens, rows.to(wide) * scores[tokens, choice, None].to(wide))
    return total.to(hidden.dtype)


@torch.library.custom_op("autoplan::experts", mutates_args=(), schema=SCHEMA)
def _experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool,
) -> Tensor:  # fmt: skip
    return run_forward(hidden, index, scores, first, down, biases, activation, transposed)


@_experts.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool,
) -> Tensor:  # fmt: skip
    return hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1])


def run_backward(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], activation: str, transposed: bool, count: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of hidden, scores, down, each of first, each of biases.

    With y = down · a and s the score: d s = <d result, y> = <downᵀ · d result, a>, so y itself isn't needed.
    """
    through = value_and_gradients(activation, names_of(first))
    if grouped.serves(hidden, [*first, down]):
        return grouped.backward(gradient, hidden, index, scores, first, down, biases, through, transposed, count)
    d_hidden, d_scores, d_down, *rest = (torch.zeros_like(t) for t in (hidden, scores, down, *first, *biases))
    d_first, d_biases = rest[: len(first)], rest[len(first) :]
    for expert, tokens, choice in chosen(index, down.shape[0]):
        rows, outer = hidden[tokens], gradient[tokens]
        score = scores[tokens, choice, None].to(hidden.dtype)
        products = first_products(rows, expert, first, biases, transposed)
        back = outer @ as_linear(down[expert], transposed)
        inner, d_products = through(products, back * score)
        d_scores.index_put_((tokens, choice), (back * inner).sum(-1).to(scores.dtype))
        as_linear(d_down[expert], transposed).copy_((outer * score).t() @ inner)
        for part, (weight, d_weight) in zip(d_products, zip(first, d_first, strict=True), strict=True):
            as_linear(d_weight[expert], transposed).copy_(part.t() @ rows)
            d_hidden.index_add_(0, tokens, part @ as_linear(weight[expert], transposed))
        for part, d_bias in zip(d_products, d_biases, strict=False):
            d_bias[expert] = part.sum(0)
    return [d_hidden, d_scores, d_down, *d_first, *d_biases]


@torch.library.custom_op("autoplan::experts_backward", mutates_args=(), schema=BACKWARD)
def _backward(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], activation: str, transposed: bool,
) -> list[Tensor]:  # fmt: skip
    return run_backward(gradient, hidden, index, scores, first, down, biases, activation, transposed)


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], activation: str, transposed: bool,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    hidden, index, scores, first, down, biases, ctx.activation, ctx.transposed = inputs
    ctx.first, ctx.biases = len(first), len(biases)
    ctx.save_for_backward(hidden, index, scores, down, *first, *biases)


def _gradients(ctx: Any, gradient: Tensor) -> tuple:
    hidden, index, scores, down, *rest = ctx.saved_tensors
    first, biases = rest[: ctx.first], rest[ctx.first :]
    d_hidden, d_scores, d_down, *found = torch.ops.autoplan.experts_backward(
        gradient, hidden, index, scores, first, down, biases, ctx.activation, ctx.transposed
    )
    return d_hidden, None, d_scores, found[: ctx.first], d_down, found[ctx.first :], None, None


_experts.register_autograd(_gradients, setup_context=_keep)
