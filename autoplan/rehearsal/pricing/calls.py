"""The collectives and messages that a plan prices on one rank, and those that it knows of and leaves unpriced."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoplan.cost import Prices
from autoplan.cost.operators.collective_ops import SEND
from autoplan.cost.operators.lookups import PLACED
from autoplan.cost.operators.operator_seconds import RING, travel_of
from autoplan.cost.prices import COPYING
from autoplan.ir.graph import DTYPE_BYTES
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.typed_program import Collective, TypedValue
from autoplan.options import Training
from autoplan.rehearsal.pricing.parameter_calls import parameter_calls
from autoplan.rehearsal.pricing.priced_call import PricedCall
from autoplan.rehearsal.pricing.priced_plan import RankShare
from autoplan.rehearsal.records import Span
from autoplan.rules.nn.expert_capacity import ROUTED
from autoplan.runtime.parallel.loss_denominators import loss_from_all
from autoplan.search.block_cost.account import MovedBytes

WIRE = {"permute": "all-to-all", "all-to-all-v": "all-to-all", SEND: "all-to-all"}
"""What the runtime calls for kinds of collectives that torch has no function of."""
BY_SIZE = ("all-to-all-v", SEND)
"""Kinds whose bytes are the busiest rank's, or those of several steps together."""
AGREED = 8  # int64 in the agreement before a step, beside one for each data rank; sent with their negatives
INT64, FLOAT64, FLOAT32 = 8, 8, 4


def priced_calls(share: RankShare) -> list[PricedCall]:
    """What the plan prices."""
    found = [*block_calls(share), *messages(share)]
    if share.prices.training:
        found += parameter_calls(share)
    return [call for call in found if call.count and call.span]


def block_calls(share: RankShare) -> Iterator[PricedCall]:
    """Redistributions, and collectives inside operators; what runs again in the backward repeats its forward's."""
    uses, again, partly = share.uses()
    m, partly = share.microbatches, Counter() if share.hosts else partly
    for index, block in enumerate(share.blocks):
        for moved in block.moves:
            step, span = moved.step, share.plan.span(moved.step.axes)
            if step.forward and step.forward_bytes:
                whole, cheap = m * (uses[index] + again[index]), m * partly[index] * moved.again
                if step.chunks > 1 and moved.second_s is not None:  # again as one
                    yield call_of(share, whole_again(moved), span, False, cheap)
                    cheap = 0
                yield call_of(share, moved, span, False, whole + cheap)
            if step.backward and step.backward_bytes and share.prices.training:
                yield call_of(share, moved, span, True, m * uses[index])


def call_of(share: RankShare, moved: MovedBytes, span: Span, backward: bool, count: int) -> PricedCall:
    step: Collective = moved.step
    kind, size = (step.backward, step.backward_bytes) if backward else (step.forward, step.forward_bytes)
    chunks = step.chunks_back if backward else step.chunks
    off = rounding(share, moved, size) if step.op == ROUTED and step.backward else 0  # counts have no rows
    seconds, size, count = crossing_s(share.prices, moved, backward=backward) / chunks, size // chunks, chunks * count
    where = f"{moved.where} (backward)" if backward else moved.where
    parts, padding = kind in BY_SIZE or step.op == RING, ring_padding(share, moved) if backward else 0
    return PricedCall(
        where, WIRE.get(kind, kind), span, size, count, seconds, parts, padding, unsized=step.op == PLACED, rounding=off
    )


def rounding(share: RankShare, moved: MovedBytes, size: int) -> int:
    """By how many bytes a message of a mixture's tokens may be off: whole rows go to each rank, and a chunk has a
    token more than another.

    size  of the messages of all chunks
    """
    block, _, name = moved.where.rpartition(" ")
    for known, choice, operators in zip(
        share.plan.record.model.blocks, share.plan.record.chosen.blocks, share.plan.operators, strict=True
    ):
        if known.name == block and name in operators:
            travel = travel_of(operators[name], dict(choice.strategies)[name], share.plan.mesh)
            assert travel is not None
            token = travel.rows / travel.tokens if travel.chunks > 1 else 0.0
            return math.ceil(size / travel.rows * (travel.ways / 2 + token))
    raise AssertionError(f"{moved.where} is no operator of the plan")


def whole_again(moved: MovedBytes) -> MovedBytes:
    """Of a gather in chunks, the one that a backward runs which recomputes selectively; a body's chunks again."""
    if moved.second_s is None:
        return moved
    return replace(moved, step=replace(moved.step, chunks=1), forward_s=moved.again_s)


def ring_padding(share: RankShare, moved: MovedBytes) -> int:
    """The element by which a ring's backward makes its first message follow the result's gradient
    (``runtime.ops.attention.ring``)."""
    if moved.step.op != RING:
        return 0
    name = moved.where.rpartition(" ")[2]
    return next(DTYPE_BYTES[each[name].operands[0].dtype] for each in share.plan.operators if name in each)


def crossing_s(prices: Prices, moved: MovedBytes, *, backward: bool) -> float:
    """Seconds on the links, of a step that copies a part of a tensor beside; 0 where nothing crosses."""
    step = moved.step
    kind, size = (step.backward, step.backward_bytes) if backward else (step.forward, step.forward_bytes)
    if not kind or not size:
        return 0.0
    if step.op in COPYING:
        return prices.group_s(kind, size, step.axes)
    return moved.backward_s if backward else moved.forward_s


def messages(share: RankShare) -> Iterator[PricedCall]:
    """Activations between stages, and their gradients back: the one that enters a stage over its border in front."""
    costs, lowered, m = share.stage_model, share.plan.lowered, share.microbatches
    span = share.plan.span(("pp",)) if "pp" in share.plan.mesh else ()
    for number, stage in enumerate(lowered.stages[1:], start=1):
        size = int(costs.chain.inputs[stage.first])
        seconds = share.plan.found.stage_model.message_s(number, stage.first)
        for here, kind, back in ((number - 1, "send", "receive"), (number, "receive", "send")):
            if here not in share.stages:
                continue
            for part, floating in parts_of(stage.inputs, size):
                each_s = seconds * part / size if size else 0.0
                yield PricedCall(f"stage {number - 1} -> {number}", kind, span, part, m, each_s)
                if share.prices.training and floating:
                    where = f"stage {number - 1} -> {number} (backward)"
                    yield PricedCall(where, back, span, part, m, each_s)


def parts_of(values: tuple[TypedValue, ...], size: int) -> list[tuple[int, bool]]:
    """(bytes, whether it has a gradient) of each tensor of a message; all as one where their sum isn't what is
    priced."""
    each = [(math.prod(v.local_shape) * DTYPE_BYTES[v.type.dtype], v.type.floating) for v in values]
    return each if sum(part for part, _ in each) == size else [(size, True)]


def unpriced_calls(share: RankShare) -> list[PricedCall]:
    """Calls of a few bytes once a step, which the plan has no price for: what ranks agree on, the loss, its
    denominators, the gradients' norm."""
    training = share.plan.record.training
    if not isinstance(training, Training):
        return []
    mesh, lowered = share.plan.mesh, share.plan.lowered
    alone = ("dp",) if share.plan.record.chosen.parallelism.steps_locally else ()
    world = share.plan.span([axis.name for axis in mesh.device_axes])
    model = share.plan.span([axis.name for axis in mesh.device_axes if axis.name not in alone])
    agreed = 2 * INT64 * (AGREED + mesh.size("dp"))
    found = [PricedCall("the agreement before a step", "all-reduce", world, agreed, 1)]
    if not (share.plan.record.chosen.parallelism.continuous or loss_from_all(lowered)):
        found.append(PricedCall("whether the loss is finite", "all-reduce", world, FLOAT64, 1))
    if training.scales_loss:
        found.append(PricedCall("whether a gradient overflowed", "all-reduce", world, FLOAT32, 1))
    if training.optimizer == "lamb":
        size = FLOAT64 * len({parameter.source for parameter in lowered.parameters})
        frozen = share.plan.record.chosen.parallelism.compression == "1bit-lamb"
        found.append(PricedCall("squares of parameters and updates", "all-reduce", model, 2 * size, 1 + frozen))
        if frozen:
            found.append(PricedCall("the largest of frozen over fresh deviations", "all-reduce", model, size, 1))
    if training.clip_grad_norm is not None:
        found.append(PricedCall("the gradients' norm", "all-reduce", model, FLOAT64, 1))
    for value in (s.value for s in lowered.constants if s.value.name in lowered.counts):
        size, said = math.prod(value.local_shape) * DTYPE_BYTES[value.type.dtype], f"count of {value.name}"
        size *= mesh.size(MICROBATCH) if training.microbatch_statistics else 1
        found += [PricedCall(said, "all-reduce", span, size, 1) for span in summed_over(share, value, alone)]
    size = DTYPE_BYTES[lowered.loss.type.dtype]
    found += [PricedCall("the loss", "all-reduce", span, size, 1) for span in summed_over(share, lowered.loss)]
    if mesh.size("pp") > 1:
        found.append(PricedCall("the loss", "broadcast", share.plan.span(("pp",)), size, 1))
    return [call for call in found if call.span]


def summed_over(share: RankShare, value: TypedValue, alone: Sequence[str] = ()) -> list[Span]:
    """The groups over which a rank's summand of a value is added up, one after another.

    alone  axes whose members each have their own
    """
    return [
        share.plan.span((axis,))
        for axis, state in value.layout.rest
        if state.kind == "P" and axis not in (MICROBATCH, *alone) and share.plan.mesh.size(axis) > 1
    ]
