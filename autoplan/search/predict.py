"""A finished choice -> what it is predicted to cost, from the same prices that the search compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from autoplan.cost import Topology
from autoplan.cost.step import model_flops_per_s
from autoplan.cost.zero_shares import added, joined
from autoplan.ir.choice import Predicted, PricedCollective
from autoplan.ir.graph import Model
from autoplan.search.evaluate import Evaluated
from autoplan.search.inter_op.parameter_shares import cost_of_compressed
from autoplan.search.inter_op.peak_memory import peaks_of
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.problem_inputs import Prepared
from autoplan.search.split_shares import split_share
from autoplan.search.step_seconds import once_s

COMPRESSED = "compressed gradients"
PUSH, PULL = "push", "pull"  # to and from parameter servers: many messages to one rank, and from one to many


def predict(found: Evaluated, prepared: Prepared, topology: Topology) -> Predicted:
    """Step time, throughput, memory and every collective of one evaluated candidate."""
    model = prepared.model
    return Predicted(
        step_time_s=found.step_s,
        tokens_per_s=units(model) / found.step_s,
        mfu=utilisation(found, prepared, topology),
        peak_bytes=peaks_of(found.stage_model, found.stages, found.candidate.pp),
        bubble_fraction=bubble_of(found),
        collectives=tuple(collectives(found, model)),
        split=split_share(prepared, found.point.blocks, found.candidate.mesh, topology.device),
    )


def bubble_of(found: Evaluated) -> float:
    """The share of a step that ranks wait in the pipeline's bubble: a part of the schedule, not of what follows it."""
    line = found.timeline
    whole_s = line.step_s + once_s(found.stage_model, found.stages, line)
    return line.bubble_fraction * line.step_s / whole_s if whole_s else 0.0


def units(model: Model) -> int:
    """Tokens of a step where the first batch input is of ids, else rows."""
    kind = model.batch[0].type
    return kind.elements if not kind.floating else (kind.shape[0] if kind.shape else 1)


def utilisation(found: Evaluated, prepared: Prepared, topology: Topology) -> float:
    """The model's FLOPs, nothing recomputed and nothing done twice, over what all devices could do in the step."""
    uses = Counter(segment.block for segment in prepared.model.segments)
    flops, rate = model_flops_per_s(prepared.operators, uses, topology, prepared.training)
    return flops / (rate * found.step_s) if rate else 0.0


def collectives(found: Evaluated, model: Model) -> Iterator[PricedCollective]:
    """Every collective of a step: inside blocks, between stages, of parameters and gradients."""
    uses = most_uses(found, model)
    for index, price in enumerate(found.point.prices):
        runs, again, partly = uses[index]
        for moved in price.moves:
            step, m = moved.step, found.candidate.microbatches
            if step.forward and step.forward_bytes:
                whole, cheap = m * (runs + again), m * partly * moved.again
                count, kind, chunks = whole + cheap, step.forward, step.chunks
                second = (cheap * moved.again_s, cheap * moved.hidden_again_s)
                if chunks > 1 and cheap and moved.second_s is not None:  # again as one
                    where = f"{moved.where} (again)"
                    yield PricedCollective(where, kind, step.axis, step.forward_bytes, cheap, *second)
                    count, second = whole, (0.0, 0.0)
                seconds = whole * moved.forward_s + second[0]
                hidden_s, size = whole * moved.hidden_forward_s + second[1], step.forward_bytes // chunks
                yield PricedCollective(moved.where, kind, step.axis, size, chunks * count, seconds, hidden_s)
            if step.backward and step.backward_bytes and found.stage_model.data.prices.training:
                where, count = f"{moved.where} (backward)", m * runs
                seconds = count * moved.backward_s
                hidden_s, kind, chunks = count * moved.hidden_backward_s, step.backward, step.chunks_back
                size = step.backward_bytes // chunks
                yield PricedCollective(where, kind, step.axis, size, chunks * count, seconds, hidden_s)
    yield from messages(found)
    yield from parameter_collectives(found)


def most_uses(found: Evaluated, model: Model) -> list[tuple[int, int, int]]:
    """For each block, on the pipeline rank where it stands most often: (its segments, of these recomputed in full,
    selectively)."""
    most = [(0, 0, 0)] * len(model.blocks)
    hosts = found.stage_model.data.offload == "activations"
    for rank in range(found.candidate.pp):
        counts, recomputed, partly = Counter[int](), Counter[int](), Counter[int]()
        for stage in found.stages[rank :: found.candidate.pp]:
            at = (stage.first, stage.last)
            full, part = found.stage_model.recomputed(at, stage.recompute, 0 if hosts else stage.selective)
            blocks = [segment.block for segment in model.segments[slice(*at)]]
            counts.update(blocks)
            recomputed.update(block for block, again in zip(blocks, full, strict=True) if again)
            partly.update(block for block, again in zip(blocks, part, strict=True) if again)
        for block, count in counts.items():
            most[block] = max(most[block], (count, recomputed[block], partly[block]))
    return most


def messages(found: Evaluated) -> Iterator[PricedCollective]:
    """Activations from stage to stage, and their gradients back; hidden is what runs beside the compute of those who
    read them, by the schedule's timeline."""
    directions = 2 if found.stage_model.data.prices.training else 1
    for k, stage in enumerate(found.stages[1:]):
        seconds, count = found.stage_model.message_s(k + 1, stage.first), directions * found.candidate.microbatches
        size = int(found.stage_model.chain.inputs[stage.first])
        hidden_s = max(0.0, count * seconds - found.timeline.waits_s[k])
        yield PricedCollective(f"stage {k} -> {k + 1}", "send", "pp", size, count, count * seconds, hidden_s)


def parameter_collectives(found: Evaluated) -> Iterator[PricedCollective]:
    """Gathers of parameters, sums of gradients: on the pipeline rank that has most of them."""
    stage_model, data = found.stage_model, found.stage_model.data
    if not data.prices.training:
        return
    pp = found.candidate.pp
    ranks = [[(s.first, s.last) for s in found.stages[rank::pp]] for rank in range(pp)]
    rank = max(range(len(ranks)), key=lambda rank: sum(map(stage_model.parameter_bytes, ranks[rank])))
    stage_model, runs = stage_model.at(rank), ranks[rank]
    size = sum(map(stage_model.parameter_bytes, runs))
    stored = data.prices.stored
    once_s = zip(*(stage_model.once_s(at)[:2] for at in runs), strict=True)
    spent_s, hidden_s = (float(sum(seconds)) for seconds in once_s)
    held = stage_model.chain.held.kinds.items()
    kinds = {axes: sum(float(kind.first_read(at).sum()) for at in runs) for axes, kind in held}
    groups = data.by_group(kinds)
    sent = [each for at in runs if (each := cost_of_compressed(data, stage_model.chain.held, at))]
    if sent:
        groups = added(data.by_group(unit) for at in runs for unit in stage_model.unit_bytes(at))
        for axes in dict.fromkeys(axes for each in sent for axes in each.kinds):
            for alike in zip(*(each.sent(axes, data.prices) for each in sent if axes in each.kinds), strict=True):
                (kind, _, over), sizes = alike[0], [size for _, size, _ in alike]
                sent_s = sum(data.prices.collective_s(kind, size, over) for size in sizes)
                spent_s -= sent_s
                yield PricedCollective(COMPRESSED, kind, over, sum(sizes), 1, sent_s, 0.0)
    if data.size > 1 and data.alone:
        kind, count = ("send", data.neighbours) if data.neighbours else ("all-reduce", 1)
        averaged = int(data.averaged * stored * size)
        yield PricedCollective("replicas", kind, data.axis, averaged, count, spent_s, hidden_s)
    elif data.servers:
        each_s = zip(*(pushed_s(stage_model, at) for at in runs), strict=True)
        push_s, early_s = (float(sum(seconds)) for seconds in each_s)
        pushed, pulled = int(data.prices.summed * size), int(stored * size)
        yield PricedCollective("gradients", PUSH, data.axis, pushed, 1, push_s, early_s)
        yield PricedCollective("parameters", PULL, data.axis, pulled, 1, spent_s - push_s, hidden_s - early_s)
    elif data.size > 1 and data.zero == 0:
        seconds = {axes: data.buckets_s(data.prices.summed * bytes, axes) for axes, bytes in groups.items()}
        for axes, bytes in groups.items():
            share = seconds[axes] / (sum(seconds.values()) or 1.0)
            spent = share * spent_s, share * hidden_s
            for kind, all_bytes, over, *seconds_of in data.summed_by(data.prices.summed * bytes, axes, *spent):
                yield PricedCollective("gradients", kind, over, int(all_bytes), 1, *seconds_of)
    elif data.shared:
        yield from sharded(stage_model, runs, groups, hidden_s)
    beside = Counter[str]()
    for at in runs:
        beside.update(stage_model.summed_bytes(at))
    beside_s, early_s = (sum(part) for part in zip(*(summed_beside_s(stage_model, at) for at in runs), strict=True))
    for axes, summed in beside.items():
        summed_s = data.buckets_s(summed, axes)
        spent = summed_s, early_s * summed_s / beside_s
        yield PricedCollective("gradients of replicated weights", "all-reduce", axes, int(summed), 1, *spent)
    tied = sum(map(stage_model.tied_bytes, runs))
    if tied and found.candidate.pp > 1:
        tied_s = sum(map(stage_model.tied_s, runs))
        yield PricedCollective("gradients of tied weights", "all-reduce", "pp", int(tied), 1, tied_s, 0.0)


def pushed_s(stage_model: StageModel, at: tuple[int, int]) -> tuple[float, float]:
    """(seconds, of these hidden) of a run's gradients on their way to parameter servers."""
    return stage_model.data.once_s(stage_model.unit_bytes(at), stage_model.forward_s(at), stage_model.backward_s(at, 0))


def summed_beside_s(stage_model: StageModel, at: tuple[int, int]) -> tuple[float, float]:
    """(seconds, of these hidden) of a run's gradients that are summed over other axes than the data axis'."""
    units, backward_s = stage_model.unit_bytes(at), stage_model.backward_s(at, 0)
    return stage_model.data.beside_s(stage_model.summed_bytes(at), units, backward_s)


def sharded(
    stage_model: StageModel, runs: Sequence[tuple[int, int]], groups: Mapping[str, float], hidden_s: float
) -> Iterator[PricedCollective]:
    """ZeRO's gathers and scatters: once a step, or in each microbatch; there they hide under the compute beside.

    runs      of segments on one rank
    groups    bytes of their trained parameters, by the axes of the group that gathers them
    hidden_s  of what happens once a step
    """
    data, m = stage_model.data, stage_model.candidate.microbatches
    pairs = [pair for at in runs for pair in stage_model.unit_pairs(at)]
    parameters, both = [trained for trained, _ in pairs], [joined(*pair) for pair in pairs]
    gathers = [count for at in runs for count in stage_model.unit_gathers(at)]
    scatters = m if data.scatters_each else 1
    gather_s = sum(n * data.gather_s(unit) for n, unit in zip(gathers, both, strict=True))
    scatter_s = scatters * sum(map(data.scatter_s, parameters))
    replicas_s = sum(map(data.replicas_s, parameters)) if data.across else 0.0
    waits_s = m * sum(map(stage_model.exposed_s, runs))
    each_s = (gather_s if data.zero == 3 else 0.0) + (scatter_s if data.scatters_each else 0.0)
    total_s = gather_s + scatter_s + replicas_s
    hidden_s += max(0.0, each_s - waits_s)
    share = hidden_s / total_s if total_s else 0.0
    units = [data.by_group(unit) for unit in parameters]
    counted = list(zip(gathers, map(data.by_group, both), strict=True))
    alike = [(count, [unit for n, unit in counted if n == count]) for count in dict.fromkeys(gathers)]
    for axes in dict.fromkeys([*groups, *(axes for _, unit in counted for axes in unit)]):
        for where, kind, count, times, those in (
            *(("parameters", "all-gather", count, 1.0, those) for count, those in alike),
            ("gradients", "reduce-scatter", scatters, data.prices.summed, units),
        ):  # fmt: skip
            sizes = [times * unit[axes] for unit in those if axes in unit]
            spent_s = count * sum(data.prices.collective_s(kind, each, axes) for each in sizes)
            if spent_s:  # experts that ZeRO has on one rank cross no links
                yield PricedCollective(where, kind, axes, int(sum(sizes)), count, spent_s, spent_s * share)
        if data.across and axes in groups:
            spent_s = sum(data.replica_s(unit[axes], axes) for unit in units if axes in unit)
            size = data.shard_bytes(groups[axes], axes)
            yield PricedCollective("gradients", "all-reduce", data.across, int(size), 1, spent_s, spent_s * share)
