"""A mixture's tokens on their way while a shared expert computes: ``routed_experts`` in three calls.

    sent = send_tokens(hidden, index, scores, ..)     tokens set out
    ..                                                first products of the shared expert
    given = run_experts(sent, first, down, ..)        tokens have arrived; results set out
    ..                                                its last product
    result = return_tokens(given)                     results have arrived

Autograd runs the backward of what was called last first. So gradients travel likewise: those of results while the
shared expert's last product has its own, those of tokens while the experts' weights have theirs, and the shared
expert's first products.

What is in flight has other rows here than there, so no edge of autograd's graph can carry it both ways. Each edge is a
tensor without memory of its own that has the rows of its gradient; what flies forward stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.ops.experts.gradient import as_rows
from autoplan.ops.experts.grouped import Inside, Weights, cast
from autoplan.ops.experts.mixture import kept_of, run_backward_of_rows, run_forward
from autoplan.rules.nn.expert_capacity import rows_sent
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.experts.dispatch import Journey, Message, Peers, as_bits, from_bits
from autoplan.runtime.ops.experts.routed import counted_of, own_index, wider


class Sent(NamedTuple):
    """Tokens on their way.

    edge    [rows sent, width of a message]: of autograd's graph
    flying  [rows that come here, width]
    tokens, counts  of their ``Journey``, of ``rows`` to each rank where these are known
    given   hidden, index and scores, [tokens, ..] each; ``lead``: the tokens' dims
    """

    edge: Tensor
    flying: Tensor
    tokens: Tensor
    counts: Tensor
    rows: int
    peers: Peers
    given: tuple[Tensor, Tensor, Tensor]
    lead: torch.Size

    @property
    def journey(self) -> Journey:
        return Journey.again(self.tokens, self.counts.tolist(), self.peers, self.rows)


class Given(NamedTuple):
    """What experts gave, on its way back: as ``Sent``, [rows that came here, width] and [rows sent, width]."""

    edge: Tensor
    flying: Tensor
    sent: Sent


def send_tokens(
    hidden: Tensor, index: Tensor, scores: Tensor, experts: int, *, axes: Sequence[MeshAxis],
    capacity: float | None = None,
) -> Sent:  # fmt: skip
    """Sets out this rank's tokens; ``experts``: of each rank; others as of ``routed_experts``."""
    (axis,) = axes
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    lead, choices = hidden.shape[:-1], index.shape[-1]
    hidden, index, scores = as_rows(hidden, index, scores)
    peers, rows = Peers(axis.group.group_name, axis.size, axis.rank, axis.places), 0
    if capacity is not None:
        rows = rows_sent(math.prod(lead[:-1]), lead[-1], choices, experts, axis.size, capacity)
    edge, flying, tokens, counts = _Send.apply(hidden, index, scores, experts, rows, peers)
    return Sent(edge, flying, tokens, counts, rows, peers, (hidden, index, scores), lead)


def run_experts(
    sent: Sent, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor], activation: str, transposed: bool,
    complete: bool = False, keep: bool = True, keep_activated: bool = True,
) -> Given:  # fmt: skip
    """The tokens that have come here through their experts; the results set out."""
    settings = (activation, transposed, *kept_of(keep, keep_activated))
    edge, flying = _Experts.apply(sent, settings, len(first), sent.edge, down, *first, *biases)
    return Given(edge, flying, sent)


def return_tokens(given: Given) -> Tensor:
    """The results that have come back, of this rank's tokens."""
    result = _Return.apply(given.sent, given.flying, given.edge)
    return result.reshape(*given.sent.lead, result.shape[-1])


def gradient_width(scores: Tensor, hidden: Tensor) -> int:
    """Of a row's gradients of scores and of a token, as elements of the token."""
    return scores.shape[1] * scores.itemsize // hidden.itemsize + hidden.shape[1]


def edge_of(like: Tensor, rows: int, width: int) -> Tensor:
    """[rows, width] over one element."""
    return like.new_empty(()).expand(rows, width)


class _Send(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, index: Tensor, scores: Tensor, experts: int, rows: int, peers: Peers
    ) -> tuple[Tensor, ...]:
        (journey,) = Journey.of(index, experts, peers, rows)
        flying = journey.all_set_out(wider(scores, hidden), index, hidden)
        counts = counted_of(journey)
        ctx.save_for_backward(journey.tokens, counts)
        ctx.rows, ctx.peers, ctx.hidden, ctx.scores = rows, peers, hidden.shape, (scores.shape, scores.dtype)
        edge = edge_of(hidden, sum(journey.sent), gradient_width(wider(scores, hidden), hidden))
        ctx.mark_non_differentiable(flying, journey.tokens, counts)
        ctx.set_materialize_grads(False)
        return edge, flying, journey.tokens, counts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        tokens, counts = ctx.saved_tensors
        journey = Journey.again(tokens, counts.tolist(), ctx.peers, ctx.rows)
        shape, dtype = ctx.scores
        back = journey.returned(gradient)
        wide = dtype if dtype.itemsize >= back.dtype.itemsize else back.dtype
        d_hidden, d_scores = back.new_zeros(ctx.hidden), back.new_zeros(shape, dtype=wide)
        of_scores, of_rows = back.split([back.shape[1] - d_hidden.shape[1], d_hidden.shape[1]], 1)
        journey.added(of_rows, d_hidden)
        journey.added(from_bits(of_scores, wide), d_scores)
        return d_hidden, None, cast(d_scores, dtype), None, None, None


class _Experts(Function):
    @staticmethod
    def forward(
        ctx: Any, sent: Sent, settings: tuple[str, bool, bool, bool], count: int, edge: Tensor, down: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """operands  ``count`` of the first products' weights, then their biases"""
        (activation, transposed, keep, keep_activated), journey = settings, sent.journey
        hidden, index, scores = sent.given
        weights, wide = Weights(operands[:count], down, operands[count:], transposed), wider(scores, hidden)
        arrived = journey.arrived(sent.flying)
        message = Message.read(arrived, index.shape[1], wide.dtype)
        own = own_index(message, journey.peers.rank, down.shape[0])
        known = own, message.scores, weights, activation, journey.choices, not journey.counted
        given, inside = run_forward(message.rows, *known, keep_activated)
        flying = journey.goes_back(given)
        kept = [arrived, *inside.kept] if keep else [hidden, index, scores]
        ctx.save_for_backward(sent.tokens, sent.counts, down, *operands, *kept)
        ctx.settings, ctx.count, ctx.operands = settings, count, len(operands)
        ctx.rows, ctx.peers, ctx.choices, ctx.wide = sent.rows, sent.peers, index.shape[1], wide.dtype
        ctx.mark_non_differentiable(flying)
        ctx.set_materialize_grads(False)
        return edge_of(given, given.shape[0], given.shape[1]), flying

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        tokens, counts, down, *rest = ctx.saved_tensors
        operands, kept = rest[: ctx.operands], rest[ctx.operands :]
        activation, transposed, keep, _ = ctx.settings
        weights = Weights(operands[: ctx.count], down, operands[ctx.count :], transposed)
        journey = Journey.again(tokens, counts.tolist(), ctx.peers, ctx.rows)
        if keep:
            arrived = kept[0]
            message = Message.read(arrived, ctx.choices, ctx.wide)
            inside = Inside.again(kept[1:], message.rows, weights)
        else:
            hidden, index, scores = kept
            arrived = journey.send_all(wider(scores, hidden), index, hidden)()
            message = Message.read(arrived, ctx.choices, ctx.wide)
            own = own_index(message, journey.peers.rank, down.shape[0])
            inside = Inside.of(message.rows, own, message.scores, weights, journey.choices, not journey.counted)
        shape, of_results = (arrived.shape[0], ctx.choices), journey.arrived(gradient)
        d_rows, d_scores, further = run_backward_of_rows(of_results, message.rows, inside, weights, activation, shape)
        back = None
        if ctx.needs_input_grad[3]:
            back = journey.goes_back(torch.cat([as_bits(d_scores, d_rows.dtype), d_rows], 1))
        return None, None, None, back, *further.gradients()


class _Return(Function):
    @staticmethod
    def forward(ctx: Any, sent: Sent, flying: Tensor, edge: Tensor) -> Tensor:
        journey = sent.journey
        result = flying.new_zeros(sent.given[0].shape[0], flying.shape[1])
        journey.added(journey.returned(flying), result)
        ctx.save_for_backward(sent.tokens, sent.counts)
        ctx.rows, ctx.peers = sent.rows, sent.peers
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        tokens, counts = ctx.saved_tensors
        return None, None, Journey.again(tokens, counts.tolist(), ctx.peers, ctx.rows).sets_out(gradient)
