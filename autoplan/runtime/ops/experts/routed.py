"""A mixture's experts split over ranks that each have some of the tokens, which travel by all-to-all.

One operator of torch.library for each direction where a compiler runs, so that it takes a block whole although sizes
inside depend on values. The backward keeps which tokens went where, what arrived, the first products and what the
activation makes of them, so that it sends gradients alone. Where memory is short it computes the activation again, or
keeps its own tokens, indices and scores, and sends these again.

Tokens may be cut into chunks: while the experts compute one, the next comes and what they gave for the one before goes
back, so that the first way there and the last way back alone are waited for. In what order messages are sent follows
from the number of chunks, so it is the same on all ranks:

    sent              0 there, 1 there, 0 back, 2 there, 1 back, ..
    computed                  0                1

In the backward the tokens' gradients also go back while the weights' gradients are computed, whose sums over chunks
are those of all tokens.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from autoplan.ops.experts.activation import value_and_made
from autoplan.ops.experts.few_sizes import counted
from autoplan.ops.experts.gradient import Plain, as_rows, register_gradient
from autoplan.ops.experts.grouped import Inside, Weights, cast, kept_like
from autoplan.ops.experts.mixture import OPERANDS, SETTINGS, kept_of, names_of, run_backward_of_rows, run_forward
from autoplan.rules.nn.expert_capacity import rows_sent
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.experts.dispatch import Journey, Message, Peers, as_bits, expected, from_bits

PEERS = "SymInt rows, int chunks, str group, int size, int rank, int[] places"
SCHEMA = f"({OPERANDS}, {SETTINGS}, {PEERS}) -> (Tensor, Tensor[])"
BACKWARD = f"(Tensor gradient, {OPERANDS}, Tensor[] kept, {SETTINGS}, {PEERS}) -> Tensor[]"


def routed_experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool = False, keep: bool = True, keep_activated: bool = True, *,
    axes: Sequence[MeshAxis], capacity: float | None = None, chunks: int = 1,
) -> Tensor:  # fmt: skip
    """This rank's tokens through all their experts: all S, tokens by rows, weights by experts -> S [.., o]; one axis.

    Forward: counts, tokens there, results back; backward: gradients there and back, with the tokens where these and
    the first products aren't kept (``keep``, and ``keep_activated``, are as of ``autoplan.ops.experts.experts``).
    capacity  of experts, where choices are within it and rows of the batch whole: counts are left out
    chunks    into how many the tokens are cut; with a capacity whole rows of the batch, or as many as divide these
    """
    (axis,) = axes
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    lead, choices = hidden.shape[:-1], index.shape[-1]
    flat = as_rows(hidden, index, scores)
    peers = (axis.group.group_name, axis.size, axis.rank, list(axis.places))
    groups, rows = math.prod(lead[:-1]), 0
    if capacity is not None:
        rows = rows_sent(groups, lead[-1], choices, down.shape[0], axis.size, capacity)
    chunks = math.gcd(chunks, groups) if rows else chunks
    settings = (activation, transposed, complete, *kept_of(keep, keep_activated), rows // chunks, chunks, *peers)
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
    return message.index - rank * here if rank else message.index


def run(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool, keep_activated: bool, rows: int, chunks: int,
    group: str, size: int, rank: int, places: Sequence[int],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The result; and of each chunk the tokens that went, what went and came (``Journey``), what arrived, and
    ``Inside.kept``, the latter two where they are kept."""
    here, weights = down.shape[0], Weights(first, down, biases, transposed)
    journeys = Journey.of(index, here, Peers(group, size, rank, tuple(places)), rows, chunks)
    wide = wider(scores, hidden)
    parts = chunks_of(chunks, wide, index, hidden)
    result = hidden.new_zeros(hidden.shape[0], down.shape[2 if transposed else 1])
    totals, kept = [total for (total,) in chunks_of(chunks, result)], list[Tensor]()
    back: Callable[[], Tensor] | None = None

    def computed(journey: Journey, arrived: Tensor) -> Callable[[], Tensor]:
        """What a chunk's experts give, on its way back; all else that they made is let go before the next chunk's."""
        message = Message.read(arrived, index.shape[1], wide.dtype)
        known = own_index(message, rank, here), message.scores, weights, activation
        given, inside = run_forward(message.rows, *known, journey.choices, not journey.counted, keep_activated)
        kept.extend([journey.tokens, counted_of(journey), *([arrived, *inside.kept] if keep else [])])
        return journey.back(given)

    coming = journeys[0].send_all(*parts[0])
    for number, journey in enumerate(journeys):
        arrived = coming()
        if number + 1 < chunks:
            coming = journeys[number + 1].send_all(*parts[number + 1])
        earlier, back = back, computed(journey, arrived)
        if earlier is not None:
            journeys[number - 1].added(earlier(), totals[number - 1])
    assert back is not None
    journeys[-1].added(back(), totals[-1])
    return result, kept


def chunks_of(chunks: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Of each chunk its rows of the tensors."""
    return [tensors] if chunks == 1 else list(zip(*(x.tensor_split(chunks) for x in tensors), strict=True))


def run_back(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], kept: Sequence[Tensor], activation: str, transposed: bool, complete: bool, keep: bool,
    keep_activated: bool, rows: int, chunks: int, group: str, size: int, rank: int, places: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    """Each of a token's scores got its gradient on one rank, and zeros on the others."""
    here, weights, choices = down.shape[0], Weights(first, down, biases, transposed), index.shape[1]
    peers, each = Peers(group, size, rank, tuple(places)), len(kept) // chunks
    saved = [kept[each * number : each * (number + 1)] for number in range(chunks)]
    journeys = [Journey.again(part[0], part[1].tolist(), peers, rows) for part in saved]
    wide = wider(scores, hidden)
    parts = chunks_of(chunks, gradient, wide, index, hidden)
    d_hidden, d_scores = torch.zeros_like(hidden), torch.zeros_like(wide)
    totals = chunks_of(chunks, d_scores, d_hidden)

    def send(number: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        """The gradients of what a chunk's experts gave, on their way to these, and what arrived there before."""
        of_result, *sent = parts[number]
        coming = journeys[number].send(of_result)
        return coming, partial(saved[number].__getitem__, 2) if each > 2 else journeys[number].send_all(*sent)

    def arrive(number: int, back: Callable[[], Tensor]) -> None:
        width = d_scores.shape[1] * d_scores.itemsize // d_hidden.itemsize
        there, of_rows = back().split([width, d_hidden.shape[1]], 1)
        for part, total in zip((from_bits(there, wide.dtype), of_rows), totals[number], strict=True):
            journeys[number].added(part, total)

    def computed(number: int, gradients: Tensor, arrived: Tensor) -> tuple[Callable[[], Tensor], list[Tensor]]:
        """A chunk's gradients on their way back, and those of weights; all else is let go before the next chunk's."""
        journey = journeys[number]
        if each > 2:
            rows_here = arrived[:, -hidden.shape[1] :]  # indices and scores are known
            inside = Inside.again(saved[number][3:], rows_here, weights)
        else:
            message = Message.read(arrived, choices, wide.dtype)
            rows_here = message.rows
            own = own_index(message, rank, here)
            inside = Inside.of(message.rows, own, message.scores, weights, journey.choices, not journey.counted)
        shape = (arrived.shape[0], choices)
        rows_back = run_backward_of_rows(gradients, rows_here, inside, weights, activation, shape)
        d_rows, d_choices, further = rows_back
        back = journey.back(torch.cat([as_bits(d_choices, d_rows.dtype), d_rows], 1))
        return back, further.gradients()

    coming, back, found = send(0), None, list[Tensor]()
    for number in range(chunks):
        gradients, arrived = coming[0](), coming[1]()
        if number + 1 < chunks:
            coming = send(number + 1)
        earlier, (back, of_weights) = back, computed(number, gradients, arrived)
        found = [one.add_(other) for one, other in zip(found, of_weights, strict=True)] if found else of_weights
        if earlier is not None:
            arrive(number - 1, earlier)
    assert back is not None
    arrive(chunks - 1, back)
    return [d_hidden, cast(d_scores, scores.dtype), *found]


_routed = torch.library.custom_op("autoplan::routed_experts", run, mutates_args=(), schema=SCHEMA)
_backward = torch.library.custom_op("autoplan::routed_experts_backward", run_back, mutates_args=(), schema=BACKWARD)
register_gradient(_routed, torch.ops.autoplan.routed_experts_backward)


@_routed.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool, keep: bool, keep_activated: bool, rows: int, chunks: int,
    group: str, size: int, rank: int, places: Sequence[int],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    weights, wide = Weights(first, down, biases, transposed), wider(scores, hidden)
    function = value_and_made(activation, names_of(first), keep_activated)
    result = hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1])
    kept: list[Tensor] = []
    for part in index.tensor_split(chunks):
        even, named = (size * each for each in expected(part, down.shape[0], size))
        sizes = [rows * size] * 3 if rows else [counted(even), *([counted(even), counted(named)] if keep else [])]
        tokens = index.new_empty(sizes[0], dtype=torch.int64)
        kept += [tokens, torch.empty((0,) if rows else (2, size, 2), dtype=torch.int64, device="cpu")]
        if keep:
            width = sum(part.shape[1] for part in Message.parts(wide, index, hidden))
            kept.append(hidden.new_empty(sizes[1], width))
            kept += kept_like(sizes[2], hidden, index.to(torch.int32), wide, weights, function, complete=not rows)
    return result, kept


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], *_: object,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]
