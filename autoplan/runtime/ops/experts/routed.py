"""A mixture's experts split over ranks that each have some of the tokens, which travel by all-to-all.

One operator of torch.library for each direction, so that a compiler takes a block whole although sizes inside depend on
values. The backward keeps which tokens went where, what arrived, and the first products, so that it sends gradients
alone. Where memory is short it keeps its own tokens, indices and scores instead, and sends the tokens again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoplan.ops.experts.grouped import Inside, Weights, cast, kept_like
from autoplan.ops.experts.mixture import OPERANDS, SETTINGS, run_backward, run_forward
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.experts.routing import Journey, Message, Peers, as_bits, from_bits

PEERS = "str group, int size, int rank, int[] places"
SCHEMA = f"({OPERANDS}, {SETTINGS}, bool keep, {PEERS}) -> (Tensor, Tensor, Tensor, Tensor[])"
BACKWARD = (
    f"(Tensor gradient, {OPERANDS}, Tensor tokens, Tensor counts, Tensor[] kept, {SETTINGS}, {PEERS}) -> Tensor[]"
)


def routed_experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool = False, keep: bool = True, *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """This rank's tokens through all their experts: all S, tokens by rows, weights by experts -> S [.., o]; one axis.

    Forward: counts, tokens there, results back; backward: gradients there and back, with the tokens where these and
    the first products aren't kept (``keep``).
    """
    (axis,) = axes
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    lead, choices = hidden.shape[:-1], index.shape[-1]
    flat = (hidden.reshape(-1, hidden.shape[-1]), index.reshape(-1, choices), scores.reshape(-1, choices))
    peers = (axis.group.group_name, axis.size, axis.rank, list(axis.places))
    result, *_ = torch.ops.autoplan.routed_experts(
        *flat, list(first), down, list(biases), activation, transposed, keep, *peers
    )
    return result.reshape(*lead, result.shape[-1])


def wider(scores: Tensor, hidden: Tensor) -> Tensor:
    """Scores no narrower than the tokens."""
    return scores if scores.dtype.itemsize >= hidden.dtype.itemsize else cast(scores, hidden.dtype)


def own_index(message: Message, rank: int, here: int) -> Tensor:
    """Indices counted from this rank's first expert, [rows, k]."""
    return message.index - rank * here


@torch.library.custom_op("autoplan::routed_experts", mutates_args=(), schema=SCHEMA)
def _routed(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, keep: bool, group: str, size: int, rank: int, places: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """The result; the tokens that went, and what went and came (``Journey``); what arrived and ``Inside.kept``."""
    here, weights = down.shape[0], Weights(first, down, biases, transposed)
    journey = Journey.of(index, here, Peers(group, size, rank, tuple(places)))
    wide = wider(scores, hidden)
    arrived = journey.send(*Message.parts(wide, index, hidden))
    message = Message.read(arrived, index.shape[1], wide.dtype)
    own = own_index(message, rank, here)
    rows, inside = run_forward(message.rows, own, message.scores, weights, activation, journey.choices)
    result = journey.added(journey.back(rows), hidden.shape[0])
    return result, journey.tokens, torch.tensor(journey.counts), [arrived, *inside.kept] if keep else []


@_routed.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, keep: bool, group: str, size: int, rank: int, places: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:  # fmt: skip
    context, weights = torch.library.get_ctx(), Weights(first, down, biases, transposed)
    result = hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1])
    tokens = index.new_empty(context.new_dynamic_size(), dtype=torch.int64)
    counts = torch.empty(2, size, 2, dtype=torch.int64, device="cpu")
    if not keep:
        return result, tokens, counts, []
    parts = Message.parts(wider(scores, hidden), index, hidden)
    arrived = hidden.new_empty(context.new_dynamic_size(), sum(part.shape[1] for part in parts))
    rows, small = context.new_dynamic_size(), index.to(torch.int32)
    kept = kept_like(rows, hidden, small, wider(scores, hidden), weights, complete=True)
    return result, tokens, counts, [arrived, *kept]


@torch.library.custom_op("autoplan::routed_experts_backward", mutates_args=(), schema=BACKWARD)
def _backward(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], tokens: Tensor, counts: Tensor, kept: Sequence[Tensor], activation: str,
    transposed: bool, group: str, size: int, rank: int, places: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    """Gradients of hidden, scores, down, each of first, each of biases; each of a token's scores got its gradient on
    one rank, and zeros on the others."""
    here, weights, choices = down.shape[0], Weights(first, down, biases, transposed), index.shape[1]
    journey = Journey.again(tokens, counts.tolist(), Peers(group, size, rank, tuple(places)))
    wide, gradients = wider(scores, hidden), journey.send(gradient)
    arrived = kept[0] if kept else journey.send(*Message.parts(wide, index, hidden))
    message = Message.read(arrived, choices, wide.dtype)
    if kept:
        inside = Inside.again(kept[1:], message.rows, weights)
    else:
        own = own_index(message, rank, here)
        inside = Inside.of(message.rows, own, message.scores, weights, journey.choices)
    shape = (arrived.shape[0], choices)
    d_rows, d_scores, *rest = run_backward(gradients, message.rows, inside, weights, activation, shape)
    back = journey.back(torch.cat([as_bits(d_scores, d_rows.dtype), d_rows], 1))
    return [*arrivals(journey, back, hidden, scores, wide.dtype), *rest]


def arrivals(
    journey: Journey, back: Tensor, hidden: Tensor, scores: Tensor, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradients of tokens and scores from the rows that are back: the scores' bits, of dtype ``wide``, before the
    tokens'. Added up at once where both are of one dtype."""
    tokens, width = hidden.shape[0], back.shape[1] - hidden.shape[1]
    if wide == back.dtype:
        total = journey.added(back, tokens)
        d_scores, d_hidden = total[:, :width].clone(), total[:, width:]
    else:
        ours, others = back.split([width, hidden.shape[1]], 1)
        d_scores, d_hidden = journey.added(from_bits(ours, wide), tokens), journey.added(others, tokens)
    return d_hidden, cast(d_scores, scores.dtype)


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], tokens: Tensor, counts: Tensor, kept: Sequence[Tensor], activation: str,
    transposed: bool, group: str, size: int, rank: int, places: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor, list[Tensor]]) -> None:
    hidden, index, scores, first, down, biases, activation, transposed, _, *peers = inputs
    _, tokens, counts, kept = output
    ctx.settings, ctx.peers = (activation, transposed), peers
    ctx.first, ctx.biases = len(first), len(biases)
    ctx.mark_non_differentiable(tokens, counts, *kept)
    ctx.set_materialize_grads(False)  # of what is kept there are none
    ctx.save_for_backward(hidden, index, scores, tokens, counts, down, *first, *biases, *kept)


def _gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple:
    hidden, index, scores, tokens, counts, down, *rest = ctx.saved_tensors
    first, biases, kept = rest[: ctx.first], rest[ctx.first :][: ctx.biases], rest[ctx.first + ctx.biases :]
    d_hidden, d_scores, d_down, *found = torch.ops.autoplan.routed_experts_backward(
        gradient, hidden, index, scores, first, down, biases, tokens, counts, kept, *ctx.settings, *ctx.peers
    )
    *peers, places = ctx.peers
    nothing = [None, None, None, *(None for _ in peers), [None for _ in places]]
    return d_hidden, None, d_scores, found[: ctx.first], d_down, found[ctx.first :], *nothing


_routed.register_autograd(_gradients, setup_context=_keep)
