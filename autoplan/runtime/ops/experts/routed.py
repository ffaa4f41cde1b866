"""A mixture's experts split over ranks that each have some of the tokens, which travel by all-to-all.

One operator of torch.library for each direction where a compiler runs, so that it takes a block whole although sizes
inside depend on values. The backward keeps which tokens went where, what arrived, and the first products, so that it
sends gradients alone. Where memory is short it keeps its own tokens, indices and scores, and sends these again.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from autoplan.ops.experts.gradient import Plain, register_gradient
from autoplan.ops.experts.grouped import Inside, Weights, cast, kept_like
from autoplan.ops.experts.mixture import OPERANDS, SETTINGS, run_backward, run_forward
from autoplan.rules.nn.expert_capacity import rows_sent
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.experts.dispatch import Journey, Message, Peers, as_bits, even_rows, from_bits

PEERS = "SymInt rows, str group, int size, int rank, int[] places"
SCHEMA = f"({OPERANDS}, {SETTINGS}, {PEERS}) -> (Tensor, Tensor[])"
BACKWARD = f"(Tensor gradient, {OPERANDS}, Tensor[] kept, {SETTINGS}, {PEERS}) -> Tensor[]"


def routed_experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool = False, keep: bool = True, *, axes: Sequence[MeshAxis],
    capacity: float | None = None,
) -> Tensor:  # fmt: skip
    """This rank's tokens through all their experts: all S, tokens by rows, weights by experts -> S [.., o]; one axis.

    Forward: counts, tokens there, results back; backward: gradients there and back, with the tokens where these and
    the first products aren't kept (``keep``).
    capacity  of experts, where choices are within it and rows of the batch whole: counts are left out
    """
    (axis,) = axes
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    lead, choices = hidden.shape[:-1], index.shape[-1]
    flat = (hidden.reshape(-1, hidden.shape[-1]), index.reshape(-1, choices), scores.reshape(-1, choices))
    peers = (axis.group.group_name, axis.size, axis.rank, list(axis.places))
    limits = (math.prod(lead[:-1]), lead[-1], choices, down.shape[0], axis.size)
    rows = 0 if capacity is None else rows_sent(*limits, capacity)
    settings = (activation, transposed, complete, keep, rows, *peers)
    if torch.compiler.is_compiling():
        result, _ = torch.ops.autoplan.routed_experts(*flat, list(first), down, list(biases), *settings)
    else:
        result = Plain.apply(run, run_back, settings, len(first), *flat, down, *first, *biases)
    return result.reshape(*lead, result.shape[-1])


def wider(scores: Tensor, hidden: Tensor) -> Tensor:
    """Scores no narrower than the tokens."""
    return scores if scores.dtype.itemsize >= hidden.dtype.itemsize else cast(scores, hidden.dtype)


def counted_of(journey: Journey) -> Tensor:
    return torch.tensor(journey.counts, dtype=torch.int64)


def own_index(message: Message, rank: int, here: int) -> Tensor:
    """Indices counted from this rank's first expert, [rows, k]."""
    return message.index - rank * here


def run(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool, rows: int, group: str, size: int, rank: int,
    places: Sequence[int],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The result; and the tokens that went, what went and came (``Journey``), what arrived, and ``Inside.kept``, the
    latter two where they are kept."""
    here, weights = down.shape[0], Weights(first, down, biases, transposed)
    journey = Journey.of(index, here, Peers(group, size, rank, tuple(places)), rows)
    wide = wider(scores, hidden)
    arrived = journey.send_all(wide, index, hidden)
    message = Message.read(arrived, index.shape[1], wide.dtype)
    known = own_index(message, rank, here), message.scores, weights
    given, inside = run_forward(message.rows, *known, activation, journey.choices, not journey.counted)
    result = journey.added(journey.back(given), hidden.shape[0])
    return result, [journey.tokens, counted_of(journey), *([arrived, *inside.kept] if keep else [])]


def run_back(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], kept: Sequence[Tensor], activation: str, transposed: bool, complete: bool, keep: bool,
    rows: int, group: str, size: int, rank: int, places: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    """Each of a token's scores got its gradient on one rank, and zeros on the others."""
    here, weights, choices = down.shape[0], Weights(first, down, biases, transposed), index.shape[1]
    tokens, counts, *kept = kept
    journey = Journey.again(tokens, counts.tolist(), Peers(group, size, rank, tuple(places)), rows)
    wide, gradients = wider(scores, hidden), journey.send(gradient)
    arrived = kept[0] if kept else journey.send_all(wide, index, hidden)
    message = Message.read(arrived, choices, wide.dtype)
    if kept:
        inside = Inside.again(kept[1:], message.rows, weights)
    else:
        own = own_index(message, rank, here)
        inside = Inside.of(message.rows, own, message.scores, weights, journey.choices, not journey.counted)
    shape = (arrived.shape[0], choices)
    d_rows, d_scores, *rest = run_backward(gradients, message.rows, inside, weights, activation, shape)
    bits = as_bits(d_scores, d_rows.dtype)
    there, back = journey.back(torch.cat([bits, d_rows], 1)).split([bits.shape[1], d_rows.shape[1]], 1)
    d_scores, d_hidden = (journey.added(part, hidden.shape[0]) for part in (from_bits(there, wide.dtype), back))
    return [d_hidden, cast(d_scores, scores.dtype), *rest]


_routed = torch.library.custom_op("autoplan::routed_experts", run, mutates_args=(), schema=SCHEMA)
_backward = torch.library.custom_op("autoplan::routed_experts_backward", run_back, mutates_args=(), schema=BACKWARD)
register_gradient(_routed, torch.ops.autoplan.routed_experts_backward)


@_routed.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool, rows: int, group: str, size: int, rank: int,
    places: Sequence[int],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    weights, wide = Weights(first, down, biases, transposed), wider(scores, hidden)
    result = hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1])
    even, named = size * even_rows(index, down.shape[0], size), index.numel() // size * size
    sizes = (rows * size,) * 3 if rows else (counted(even), counted(even), counted(named) if keep else 0)
    tokens = index.new_empty(sizes[0], dtype=torch.int64)
    kept = [tokens, torch.empty((0,) if rows else (2, size, 2), dtype=torch.int64, device="cpu")]
    if keep:
        width = sum(part.shape[1] for part in Message.parts(wide, index, hidden))
        kept.append(hidden.new_empty(sizes[1], width))
        kept += kept_like(sizes[2], hidden, index.to(torch.int32), wide, weights, complete=not rows)
    return result, kept


def counted(even: int) -> int | torch.SymInt:
    """A size that is known once tokens are counted; in a rehearsal, which has no values, that of even choices."""
    try:
        return torch.library.get_ctx().new_dynamic_size()
    except DynamicOutputShapeException:
        return even


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], *_: object,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]
