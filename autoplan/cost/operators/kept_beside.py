"""What an operator keeps for its backward beside its operands and its result.

Of a mixture these are its first products and what its experts gave, with what arrived from other ranks. They may be
dropped, and come of the tokens again. What its activation makes of the first products is kept where nothing is computed
again. A ring keeps its result twice.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.cost.operators.collective_ops import body_collectives
from autoplan.cost.operators.experts import Grouped, Travel
from autoplan.cost.operators.operator_seconds import Operator, grouped_of, local_factors, ring_of, tokens_of
from autoplan.ir.graph import DTYPE_BYTES
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.rules.strategies import Strategy
from cost_models.hardware import Device


def bytes_beside(operator: Operator, strategy: Strategy, mesh: Mesh) -> float:
    """On one rank, in one microbatch; 0 where no gradient goes back. Of a mixture's activation nothing."""
    if not operator.result_carries:
        return 0.0
    if is_mixture(operator):
        return mixture_bytes(operator, strategy, mesh)
    ring = ring_of(operator, strategy, mesh, True)
    if ring is not None:
        return float(ring.kept_bytes)
    if not operator.beside:
        return 0.0
    kind = operator.node.type
    layout = strategy.output(len(kind.shape), mesh)
    return operator.beside * math.prod(layout.local_shape(kind.shape, mesh))


def is_mixture(operator: Operator) -> bool:
    """Whether what it keeps beside may be dropped and computed again."""
    return operator.rule.cost == "experts"


def mixture_bytes(operator: Operator, strategy: Strategy, mesh: Mesh) -> float:
    grouped, travel = standing_of(operator, strategy, mesh)
    itemsize, score_bytes = (DTYPE_BYTES[operator.operands[place].dtype] for place in (0, 2))
    found = grouped.kept_bytes(itemsize, max(itemsize, score_bytes))
    return found if travel is None else found + travel.kept_bytes


def activated_bytes(operator: Operator, strategy: Strategy, mesh: Mesh) -> float:
    """What a mixture keeps of its activation; 0 of any other operator, and where no gradient goes back."""
    if not operator.result_carries or not is_mixture(operator):
        return 0.0
    return standing_of(operator, strategy, mesh)[0].activated_bytes(DTYPE_BYTES[operator.operands[0].dtype])


def activated_again(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device) -> tuple[float, float]:
    """Seconds of computing that again in the backward, and the bytes that stand then: one chunk's."""
    grouped, _ = grouped_of(operator, strategy, mesh)
    seconds = grouped.activated_again_s(operator.operands[0].dtype, device)
    return seconds, activated_bytes(operator, strategy, mesh) / grouped.chunks


def standing_of(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Grouped, Travel | None]:
    """A rank's experts with as many rows as stand in memory. Where it has some of the experts and every token, rows of
    choices that name none of them are there, too, though no product takes them."""
    grouped, travel = grouped_of(operator, strategy, mesh)
    if travel is not None:
        return grouped, travel
    local = local_factors(operator, strategy, mesh)
    return replace(grouped, rows=tokens_of(operator, local) * local["k"] / grouped.experts), None


def passing_bytes(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[float, float, float]:
    """What a mixture makes for a moment, as ``Grouped.passing_bytes``, with what is on its way to other ranks: a
    message stands where it is put together, and where it has arrived; and what a ring makes. Zeros for any other
    operator."""
    ring = ring_of(operator, strategy, mesh, True)
    if ring is not None:
        there, back = ring.passing_bytes
        return float(there), float(back), 0.0
    if not is_mixture(operator):
        return 0.0, 0.0, 0.0
    grouped, travel = standing_of(operator, strategy, mesh)
    if not operator.result_carries:
        grouped = replace(grouped, activation=replace(grouped.activation, kept=0))
    itemsize, score_bytes = (DTYPE_BYTES[operator.operands[place].dtype] for place in (0, 2))
    wide = max(itemsize, score_bytes)
    if travel is None:
        return grouped.passing_bytes(itemsize, wide)
    (way, result, gradient), chunks = of_chunk(travel), travel.chunks
    forward, before, after = grouped.passing_bytes(itemsize, wide, travel.rows / chunks)
    before += travel.gradient_bytes / travel.rows * travel.tokens  # zeros, to which tokens' gradients are added
    if chunks > 1:  # a chunk goes, and one comes, beside that which is computed
        others = result + other_chunks(grouped, travel, itemsize, again=False)
        return forward + way + 2 * result, before + others, after + others + 2 * gradient
    return max(forward, way + result), before + result, after + result + 2 * gradient


def of_chunk(travel: Travel) -> tuple[float, float, float]:
    """Bytes of one chunk's messages: tokens, results, and their gradients."""
    way, result, gradient = travel.there_bytes, travel.result_bytes, travel.gradient_bytes
    return way / travel.chunks, result / travel.chunks, gradient / travel.chunks


def other_chunks(grouped: Grouped, travel: Travel, itemsize: int, *, again: bool) -> float:
    """What stands of the others while a backward computes one: of the next what comes, tokens that are sent again
    among it; of the one before gradients on their way, and weights' gradients so far. Of two there is only either."""
    if travel.chunks == 1:
        return 0.0
    way, result, gradient = of_chunk(travel)
    each = (result + again * way, gradient + grouped.weight_elements * itemsize)
    return sum(each) if travel.chunks > 2 else max(each)


def rebuilt_bytes(operator: Operator, strategy: Strategy, mesh: Mesh) -> float:
    """What stands of a mixture in its backward, beside ``passing_bytes``, where that computes again what it doesn't
    keep."""
    grouped, travel = standing_of(operator, strategy, mesh)
    itemsize, score_bytes = (DTYPE_BYTES[operator.operands[place].dtype] for place in (0, 2))
    found = grouped.rebuilt_bytes(itemsize, max(itemsize, score_bytes))
    if travel is None:
        return found
    others, none = (other_chunks(grouped, travel, itemsize, again=again) for again in (True, False))
    return found + of_chunk(travel)[0] + others - none


def mixture_again_s(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device) -> float:
    """Seconds of computing again what a mixture keeps, the collective that sends tokens again aside."""
    grouped, travel = grouped_of(operator, strategy, mesh)
    return grouped.again_s(operator.operands[0].dtype, device) + (0.0 if travel is None else travel.again_s(device))


def sent_again(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Collective, ...]:
    """The collective whose forward runs again then: of counts, tokens and results the tokens'."""
    return body_collectives(operator, strategy, mesh)[-2:-1] if is_mixture(operator) else ()
