"""A mixture's experts split over ranks that each have some of the tokens, which travel by all-to-all.

One operator of torch.library for each direction, so that a compiler takes a block whole although sizes inside depend on
values. The backward keeps tokens, indices, scores and the counts, all of fixed size, and sends the tokens again with
the gradients: what a rank gets from others would be most of what a layer keeps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoplan.ops.experts.mixture import run_backward, run_forward
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.experts.routing import Journey, Peers

EXPERTS = "Tensor[] first, Tensor down, Tensor[] biases, str activation, bool transposed"
PEERS = "str group, int size, int rank, int[] places"
SCHEMA = f"(Tensor hidden, Tensor index, Tensor scores, {EXPERTS}, {PEERS}) -> (Tensor, Tensor)"
BACKWARD = (
    f"(Tensor gradient, Tensor hidden, Tensor index, Tensor scores, Tensor counts, {EXPERTS}, {PEERS}) -> Tensor[]"
)


def routed_experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """This rank's tokens through all their experts: all S, tokens by rows, weights by experts -> S [.., o]; one axis.

    Forward: counts, tokens there, results back; backward: gradients and tokens there, gradients back.
    """
    (axis,) = axes
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    lead, choices = hidden.shape[:-1], index.shape[-1]
    flat = (hidden.reshape(-1, hidden.shape[-1]), index.reshape(-1, choices), scores.reshape(-1, choices))
    peers = (axis.group.group_name, axis.size, axis.rank, list(axis.places))
    result, _ = torch.ops.autoplan.routed_experts(
        *flat, list(first), down, list(biases), activation, transposed, *peers
    )
    return result.reshape(*lead, result.shape[-1])


@torch.library.custom_op("autoplan::routed_experts", mutates_args=(), schema=SCHEMA)
def _routed(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, group: str, size: int, rank: int, places: Sequence[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and what went and came (``Journey.counts``), in the host's memory."""
    here = down.shape[0]
    journey = Journey.of(index, here, Peers(group, size, rank, tuple(places)))
    tokens, chosen, weights = journey.send(hidden, index.to(torch.int32), scores)
    local = chosen.long() - rank * here
    rows = run_forward(tokens, local, weights, first, down, biases, activation, transposed, journey.choices)
    (result,) = journey.back(hidden.shape[0], rows)
    return result, journey.counts


@_routed.register_fake
def _(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, group: str, size: int, rank: int, places: Sequence[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    result = hidden.new_empty(hidden.shape[0], down.shape[2 if transposed else 1])
    return result, torch.empty(2, size, 2, dtype=torch.int64, device="cpu")


@torch.library.custom_op("autoplan::routed_experts_backward", mutates_args=(), schema=BACKWARD)
def _backward(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, counts: Tensor, first: Sequence[Tensor],
    down: Tensor, biases: Sequence[Tensor], activation: str, transposed: bool, group: str, size: int, rank: int,
    places: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    """Gradients of hidden, scores, down, each of first, each of biases; each of a token's scores got its gradient on
    one rank, and zeros on the others."""
    here = down.shape[0]
    journey = Journey.of(index, here, Peers(group, size, rank, tuple(places)), counts)
    gradients, tokens, chosen, weights = journey.send(gradient, hidden, index.to(torch.int32), scores)
    local = chosen.long() - rank * here
    d_hidden, d_scores, *rest = run_backward(
        gradients, tokens, local, weights, first, down, biases, activation, transposed, journey.choices
    )
    return [*journey.back(hidden.shape[0], d_hidden, d_scores), *rest]


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, counts: Tensor, first: Sequence[Tensor],
    down: Tensor, biases: Sequence[Tensor], activation: str, transposed: bool, group: str, size: int, rank: int,
    places: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t) for t in (hidden, scores, down, *first, *biases)]


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    hidden, index, scores, first, down, biases, *ctx.settings = inputs
    ctx.first = len(first)
    ctx.save_for_backward(hidden, index, scores, output[1], down, *first, *biases)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple:
    hidden, index, scores, counts, down, *rest = ctx.saved_tensors
    first, biases = rest[: ctx.first], rest[ctx.first :]
    d_hidden, d_scores, d_down, *found = torch.ops.autoplan.routed_experts_backward(
        gradient, hidden, index, scores, counts, first, down, biases, *ctx.settings
    )
    *settings, places = ctx.settings
    nothing = [*(None for _ in settings), [None for _ in places]]
    return d_hidden, None, d_scores, found[: ctx.first], d_down, found[ctx.first :], *nothing


_routed.register_autograd(_gradients, setup_context=_keep)
