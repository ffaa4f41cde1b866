"""The collectives and messages that a plan prices for parameters: gathers, sums of gradients, pushes and pulls."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from autoplan.cost.compressed_sums import CompressedCost
from autoplan.cost.gathered_optimizer import GATHERED
from autoplan.cost.sent_compressed import together as sent_together
from autoplan.cost.zero_costs import TREE_SUM
from autoplan.cost.zero_shares import added, joined
from autoplan.ir.buckets import cut, server_ranks, shards
from autoplan.ir.graph import DTYPE_BYTES
from autoplan.ir.typed_program import StoredParameter, parameter_sizes
from autoplan.options import Training
from autoplan.rehearsal.device.process_groups import span_of
from autoplan.rehearsal.pricing.priced_call import PricedCall, held, span, summed_over_operators
from autoplan.rehearsal.pricing.priced_plan import RankShare
from autoplan.runtime.parallel.gradient_buckets import ALIGNMENT_BYTES, offsets
from autoplan.runtime.parallel.gradient_order import read_first
from autoplan.runtime.parallel.own_box import cut_dim
from autoplan.search.inter_op.parameter_shares import cost_of_compressed
from autoplan.search.predict import COMPRESSED, pushed_s

WHOLE = "the update of whole matrices"
INT64, FLOAT64, FLOAT32 = 8, 8, 4


def parameter_calls(share: RankShare) -> Iterator[PricedCall]:
    """Gathers of parameters, sums of gradients."""
    costs, data, intervals = share.stage_model, share.stage_model.data, share.intervals
    units = [unit for at in intervals for unit in costs.unit_bytes(at)]
    pairs = [pair for at in intervals for pair in costs.unit_pairs(at)]
    if data.servers:
        yield from server_calls(share)
    elif data.size > 1 and data.zero == 0 and not data.alone:
        spent_s, narrower = sum(costs.once_s(at)[0] for at in intervals), data.prices.summed / data.prices.stored
        spent_s -= sum(each.sums_s(share.prices) for each in compressed_costs(share))
        totals = added(data.by_group(unit) for unit in units)
        seconds = {axes: data.buckets_s(data.prices.summed * size, axes) for axes, size in totals.items()}
        for axes, size in totals.items():
            summed = [p for p in held(share) if data.group(summed_over_operators(share, p)) == axes]
            summed = [p for p in summed if not goes_compressed(share, p)]
            padding, part = padding_bytes(share, summed, narrower), seconds[axes] / (sum(seconds.values()) or 1.0)
            yield from summed_calls(share, summed, axes, (data.prices.summed * size, padding), spent_s * part)
        yield from compressed_calls(share)
    elif data.size > 1 and data.alone:
        kind, many = ("all-to-all", data.neighbours) if data.neighbours else ("all-reduce", 1)
        total = int(data.averaged * data.prices.stored * sum(costs.parameter_bytes(at) for at in intervals))
        spent_s = data.local_steps * sum(costs.once_s(at)[0] for at in intervals)
        over, seldom = span(share, data.axis), data.local_steps > 1
        yield PricedCall("replicas", kind, over, many * total, 1, spent_s, parts=True, sometimes=seldom)
    elif data.shared and data.zero:
        counts = [count for at in intervals for count in costs.unit_gathers(at)]
        if data.zero == 3:  # in each microbatch; fewer may run than are planned
            counts = [count * share.microbatches // costs.candidate.microbatches for count in counts]
        scatters = share.microbatches if data.scatters_each else 1
        added_to, sums = row_padding(share, 1.0, frozen=data.zero == 3), row_padding(share, data.prices.summed)
        for gathers, (trained, frozen), more, beside in zip(counts, pairs, added_to, sums, strict=True):
            for axes, size in data.by_group(joined(trained, frozen)).items():
                gather_s = share.prices.collective_s("all-gather", size, axes)
                yield PricedCall(
                    "parameters", "all-gather", span(share, axes), int(size), gathers, gather_s, padding=more[axes]
                )
            for axes, size in data.by_group(trained).items():
                group, reduced = span(share, axes), data.prices.summed * size
                scatter_s = share.prices.collective_s("reduce-scatter", reduced, axes)
                yield PricedCall(
                    "gradients", "reduce-scatter", group, int(reduced), scatters, scatter_s, padding=beside[axes]
                )
                if data.across:
                    part = data.shard_bytes(size, axes)
                    padding = round(beside[axes] * part / reduced)
                    replica_s, across = data.replica_s(size, axes), span(share, data.across)
                    yield PricedCall("gradients", "all-reduce", across, int(part), 1, replica_s, padding=padding)
    for axes, size in added(costs.summed_bytes(at) for at in intervals).items():
        spent_s = data.buckets_s(size, axes)
        summed = [p for p in held(share) if data.beside(summed_over_operators(share, p)) == axes]
        yield PricedCall(
            "gradients of replicated weights", "all-reduce", span(share, axes), int(size), 1, spent_s, parts=True,
            padding=padding_bytes(share, summed),
        )  # fmt: skip
    yield from tied_calls(share)
    yield from whole_calls(share)


def summed_calls(
    share: RankShare, parameters: Sequence[StoredParameter], axes: str, sizes: tuple[float, int], spent_s: float
) -> Iterator[PricedCall]:
    """Of gradients that are summed whole over these axes; ``sizes``: their bytes, and those beside them in buckets."""
    data, (size, padding) = share.stage_model.data, sizes
    phases = list(data.summed_by(size, axes, spent_s))
    if phases[0][0] == TREE_SUM:
        messages, among = tree_messages(share, axes.split(",")), span(share, axes)
        each = messages * int(size), 1, spent_s / 2
        for kind in ("send", "receive"):
            yield PricedCall("gradients", kind, among, *each, parts=True, padding=messages * padding)
        return
    ways = round(size / min(total for _, total, *_ in phases))
    if ways > 1:
        padding += round(data.prices.summed / data.prices.stored * filled_bytes(share, parameters, ways))
    for kind, total, over, seconds, _ in phases:
        part = 1 if total == size else ways
        sent, whole = int(size) // part, (int(size) + padding) // part
        yield PricedCall("gradients", kind, span(share, over), sent, 1, seconds, parts=True, padding=whole - sent)


def tree_messages(share: RankShare, axes: Sequence[str]) -> int:
    """That a rank sends in a sum on a tree, and gets: to and from what is below it and above."""
    mesh, place, size = share.plan.mesh, 0, 1
    for axis in axes:
        place, size = place * mesh.size(axis) + mesh.coordinate(share.rank, axis), size * mesh.size(axis)
    found, apart = int(place > 0), 1
    while apart < size and place % (2 * apart) == 0:
        found, apart = found + (place + apart < size), 2 * apart
    return found


def filled_bytes(share: RankShare, parameters: Sequence[StoredParameter], ways: int) -> int:
    """What buckets are filled up by, as gradients are stored, so that so many ranks have as much of each."""
    read, found = read_first(share.plan.lowered), 0
    kinds: dict[tuple, list[StoredParameter]] = defaultdict(list)
    for parameter in sorted(parameters, key=lambda p: read[p.name], reverse=True):
        ranks = tuple(sorted({stage % share.plan.mesh.size("pp") for stage in parameter.stages}))
        kinds[ranks, parameter.type.dtype].append(parameter)
    for (_, dtype), members in kinds.items():
        itemsize = round(DTYPE_BYTES[dtype] * share.prices.stored)
        counts = [math.prod(p.local_shape) for p in members]
        for places in cut([itemsize * count for count in counts]):
            elements = offsets([counts[place] for place in places], itemsize)[-1] + len(places)
            found += itemsize * (-elements % ways)
    return found


def compressed_calls(share: RankShare) -> Iterator[PricedCall]:
    """What compressed gradients are sent as over each group: of all stages of a rank together, which the plan prices
    one by one."""
    costs = compressed_costs(share)
    if not costs:
        return
    whole = sent_together(costs)
    for axes in whole.kinds:
        spent = zip(*(each.sent(axes, share.prices) for each in costs if axes in each.kinds), strict=True)
        for (kind, size, over), parts in zip(whole.sent(axes, share.prices), spent, strict=True):
            spent_s = sum(share.prices.collective_s(*part) for part in parts)
            yield PricedCall(COMPRESSED, kind, span(share, over), size, 1, spent_s)


def compressed_costs(share: RankShare) -> list[CompressedCost]:
    """Of each stage that has gradients which go so."""
    held, data = share.stage_model.chain.held, share.stage_model.data
    return [each for at in share.intervals if (each := cost_of_compressed(data, held, at))]


def goes_compressed(share: RankShare, parameter: StoredParameter) -> bool:
    """Whether the program sends its gradient so (``runtime.parallel.compression.program_sums``)."""
    tied = len({stage % share.plan.mesh.size("pp") for stage in parameter.stages}) > 1
    how, summed = share.stage_model.data.compressed, summed_over_operators(share, parameter)
    return how is not None and not tied and how.takes(parameter.local_shape) and (how.linear or not summed)


def row_padding(share: RankShare, widened: float, frozen: bool = False) -> list[Counter[str]]:
    """Of each segment's parameters the bytes by which fully_shard makes their rows divide, by the group that they are
    gathered over: none of those that it cuts along another dim.

    widened  bytes in which an element is sent, for each byte in which it is used
    frozen   those that aren't trained are sent, too
    """
    stored, data = {p.name: p for p in share.plan.lowered.parameters}, share.stage_model.data
    held, others, found = share.stage_model.chain.held, share.stage_model.chain.held_frozen, []
    for first, last in share.intervals:
        seen: set[str] = set()
        for trained, rest in zip(held.segments[first:last], others.segments[first:last], strict=True):
            gathered = (*trained, *(rest if data.zero == 3 else ()))
            fresh = {name: size for name, size in gathered if name not in seen}
            padding, sent = Counter[str](), fresh if frozen else {name: n for name, n in trained if name in fresh}
            for name, size in sent.items():
                kept = stored[name]
                rows, summed = (*kept.local_shape, 1)[0], summed_over_operators(share, kept)
                lacking = 0 if cut_dim(kept.local_shape, data.ways(summed)) else -rows % data.ways(summed)
                padding[data.group(summed)] += round(widened * size * lacking / rows)
            seen |= set(fresh)
            found += [padding] if fresh else []
    return found


def whole_calls(share: RankShare) -> Iterator[PricedCall]:
    """Gathers around an update of whole matrices: of each the parameter, its gradient and its moments, over what ZeRO
    shards first, then over the operator axes that split it, innermost first.

    The plan prices them with the update, so their seconds are those by which they share in it.
    """
    training, data, mesh = share.plan.record.training, share.stage_model.data, share.plan.mesh
    if not isinstance(training, Training) or training.optimizer not in GATHERED:
        return
    copies = int(GATHERED[training.optimizer])
    for parameter in held(share):
        if training.optimizer == "muon" and len(parameter.type.shape) != 2:
            continue  # beside Muon AdamW updates it, in parts
        shape, over = list(parameter.local_shape), []
        itemsize = DTYPE_BYTES[parameter.type.dtype] * share.prices.stored
        if data.zero and data.size > 1:
            axes = data.group(summed_over_operators(share, parameter))
            ways = data.ways(summed_over_operators(share, parameter))
            cut = cut_dim(parameter.local_shape, ways)
            divided = [-(-size // ways) * ways if dim == cut else size for dim, size in enumerate(shape)]
            over.append((axes, itemsize * math.prod(divided)))
        for axis in reversed(mesh.operator_axes):
            if mesh.size(axis) > 1 and parameter.layout.state(axis).kind == "S":
                shape[parameter.layout.state(axis).dim] *= mesh.size(axis)
                over.append((axis, itemsize * math.prod(shape)))
        for axes, size in over:
            seconds = share.prices.collective_s("all-gather", size, axes)
            yield PricedCall(WHOLE, "all-gather", span(share, axes), int(size), copies, seconds)


def server_calls(share: RankShare) -> Iterator[PricedCall]:
    """Pushes to parameter servers and pulls from them, with a way's seconds shared out by bytes."""
    data, parameters, others = share.stage_model.data, held(share), share.stage_model.data.size - 1
    ranks, owners = server_ranks(data.servers, data.size), shards(parameter_sizes(parameters), data.servers)
    mine, theirs = ([p for p in parameters if (ranks[owners[p.name]] == share.rank) == here] for here in (True, False))
    own, rest = (sum(parameter_sizes(each).values()) for each in (mine, theirs))
    summed, stored, over = data.prices.summed, data.prices.stored, span(share, data.axis)
    padding, beside = (padding_bytes(share, each, summed / stored) for each in (mine, theirs))
    push_s = sum(pushed_s(share.stage_model, at)[0] for at in share.intervals)
    pull_s = sum(share.stage_model.once_s(at)[0] for at in share.intervals) - push_s
    for where, spent_s, sent, received, paddings in (
        ("gradients", push_s, summed * rest, others * summed * own, (beside, others * padding)),
        ("parameters", pull_s, others * stored * own, stored * rest, (0, 0)),
    ):
        for kind, size, more in zip(("send", "receive"), (sent, received), paddings, strict=True):
            if size:
                part_s = spent_s * size / (sent + received)
                yield PricedCall(where, kind, over, int(size), 1, part_s, parts=True, padding=more)


def tied_calls(share: RankShare) -> Iterator[PricedCall]:
    """Sums of gradients between the stages that read a parameter, after those over the data axis."""
    costs, mesh = share.stage_model, share.plan.mesh
    total = sum(map(costs.tied_bytes, share.intervals))
    if mesh.size("pp") == 1 or not total:
        return
    groups: dict[tuple[int, ...], list[StoredParameter]] = defaultdict(list)
    for parameter in held(share):
        groups[tuple(sorted({stage % mesh.size("pp") for stage in parameter.stages}))].append(parameter)
    spent_s, where = sum(map(costs.tied_s, share.intervals)), "gradients of tied weights"
    for ranks, parameters in groups.items():
        if len(ranks) > 1:
            span = span_of([rank * mesh.axis("pp").stride for rank in ranks])
            shares = (costs.data.ways(summed_over_operators(share, p)) for p in parameters)
            used = sum(
                math.prod(p.local_shape) * DTYPE_BYTES[p.type.dtype] / ways
                for p, ways in zip(parameters, shares, strict=True)
            )
            size, padding = int(costs.data.prices.stored * used), padding_bytes(share, parameters)
            yield PricedCall(where, "all-reduce", span, size, 1, spent_s * size / total, parts=True, padding=padding)


def padding_bytes(share: RankShare, parameters: Iterable[StoredParameter], narrower: float = 1.0) -> int:
    """What buckets hold beside gradients (``runtime.parallel.gradient_buckets.Bucket``): each is aligned, and one
    element more counts the ranks that had it.

    narrower  bytes of an element as it is sent, for each byte in which it is stored
    """
    found, data = 0, share.stage_model.data
    for parameter in parameters:
        itemsize = round(DTYPE_BYTES[parameter.type.dtype] * share.prices.stored)
        step = max(1, ALIGNMENT_BYTES // itemsize)
        elements = math.prod(parameter.local_shape) // data.ways(summed_over_operators(share, parameter))
        found += round((-(-elements // step) * step - elements + 1) * itemsize * narrower)
    return found
