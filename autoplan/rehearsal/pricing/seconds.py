"""A price for each call of a trace, from the plan's own prices.

What the plan says of a block's forward is spread over the operators that the forward launched, and likewise of its
backward and of the update: their sum is the plan's. So a simulation of the calls of all ranks takes what the plan
predicts, as far as the program does what is priced in an order that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from autoplan.cost.step import straggling
from autoplan.cost.zero_shares import Held
from autoplan.rehearsal.pricing.calls import crossing_s, whole_again
from autoplan.rehearsal.pricing.price_check import balance
from autoplan.rehearsal.pricing.priced_operators import BACKWARD, FORWARD, LAUNCHED, Launched, launched, places_of
from autoplan.rehearsal.pricing.priced_plan import PlanPrices, RankShare
from autoplan.rehearsal.records import Call, RankTrace
from autoplan.search.block_cost.account import BlockCost
from autoplan.search.inter_op.chain_costs import divided_backward
from autoplan.search.predict import pushed_s, summed_beside_s

UPDATE = "update"
GATHERED_COPIES, SCATTERED_COPIES = "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"
COPIED_IN = "aten._foreach_copy_"
"""A shard into the buffer that is gathered, on a stream of its own: it has no price."""

Pool = tuple[int, str]
"""A block's number, and FORWARD or BACKWARD: what is recomputed is part of the backward."""


def prices_of(plan: PlanPrices, traces: Iterable[RankTrace], program: str) -> Callable[[RankTrace, Call], float]:
    """The seconds of any call of these traces.

    program  the text of program.py
    A collective's are those in which all of its members are done once the last of them is there; a message's those of
    its way; both of a send and of its receive. What the plan has no price for takes none: waits, joins, stops, and the
    calls that ``price_check`` leaves out or names.
    """
    seconds = {trace.rank: seconds_of(plan, trace, program) for trace in traces}
    return lambda trace, call: seconds[trace.rank][call.number]


def seconds_of(plan: PlanPrices, trace: RankTrace, program: str) -> Sequence[float]:
    """The seconds of each call, by its number."""
    share = plan.share(trace)
    found = [0.0] * len(trace.calls)
    for number, seconds in balance(plan, trace).seconds.items():
        found[number] = seconds
    beside = beside_collectives(trace, found)
    own: dict[int, list[Launched]] = {number: [] for number in share.stages}
    copied = copied_s(share)
    for each in launched(trace, places_of(program, plan.lowered)):
        if not (share.stage_model.data.sharded and each.call.name in (COPIED_IN, *copied)):
            own[stage_of(share, each.call)].append(each)
    for number, calls in own.items():
        spread_over_stage(found, replace(share, stages=(number,)), calls, beside)
    for number in own:
        for phase, more_s in slowed_once(replace(share, stages=(number,))).items():
            lengthen(found, more_s, slowed_calls(share, number, phase, own))
    for name, total_s in copied.items():
        copies = [call for call in trace.calls if call.name == name and call.during != UPDATE]
        spread(found, total_s, copies, [call.moved for call in copies])
    updates = [c for c in trace.calls if c.during == UPDATE and (c.kind in LAUNCHED or found[c.number])]
    left_s = update_s(share) - sum(copied_once_s(share)) + met_s(share)
    spread(found, left_s, updates, [found[c.number] or roofline_s(share, c) for c in updates])
    topology = share.prices.topology
    factor = straggling(topology.devices // topology.levels[0].size, topology.device)
    return tuple(factor * seconds for seconds in found)


def stage_of(share: RankShare, call: Call) -> int:
    """The stage whose forward or backward a call is part of."""
    said = call.during.partition(" of stage ")[2]
    return int(said) if said else share.stages[0]


def spread_over_stage(
    found: list[float], share: RankShare, launches: Sequence[Launched], beside: Container[int]
) -> None:
    """Shares out what the plan says of one stage's blocks over the calls that its forwards and backwards launched.

    beside  numbers of those that run beside a collective
    """
    pools: dict[Pool, list[Launched]] = defaultdict(list)
    lost: dict[str, list[Call]] = defaultdict(list)
    for each in launches:
        phase = FORWARD if each.phase == FORWARD else BACKWARD
        if each.place.block is not None:
            pools[each.place.block, phase].append(each)
        elif not each.call.line.startswith("program.py"):  # its constants have no price
            lost[phase].append(each.call)
    totals, slowed = pool_seconds(share), slowed_by_moves(share)
    for pool, calls in pools.items():
        weights, slowed_s = weights_of(share, calls), slowed.get(pool, 0.0)
        spread(found, totals.get(pool, 0.0) - slowed_s, [each.call for each in calls], weights)
        slow = [each.call for each in calls if each.call.number in beside] or [each.call for each in calls]
        lengthen(found, slowed_s, slow)
    for phase, others in lost.items():
        left_s = sum(seconds for pool, seconds in totals.items() if pool[1] == phase and pool not in pools)
        spread(found, left_s, others, [roofline_s(share, call) for call in others])


def slowed_calls(share: RankShare, number: int, phase: str, own: Mapping[int, Sequence[Launched]]) -> list[Call]:
    """The calls beside which a stage's collectives once a step run: its own first forward, or last backward. Where
    stages wait for one another (``runtime.parallel.zero``, ``gradient_buckets``) the round of the stage that the rank
    runs before it, and none, while the rank waits, where there is no such stage."""
    data, m, pp = share.stage_model.data, share.microbatches, share.plan.found.candidate.pp
    first, last = 0, m - 1
    if data.piped and number and (data.sharded or len(share.stages) == 1):
        number, first, last = number - pp, min(pp, m) - 1, max(0, m - pp)
    said = {f"{phase} {n}" for n in (range(first + 1) if phase == FORWARD else range(last, m))}
    return [each.call for each in own.get(number, ()) if each.call.during.partition(" of stage ")[0] in said]


def pool_seconds(share: RankShare) -> Mapping[Pool, float]:
    """What the plan says that the operators of each block take in one step, collectives, what they leave exposed, and
    fully_shard's copies aside."""
    costs, m, lowered = share.stage_model, share.microbatches, share.plan.lowered
    chain, data = costs.chain, costs.data
    totals: dict[Pool, float] = defaultdict(float)
    for number, stage in zip(share.stages, share.runs, strict=True):
        at = (stage.first, stage.last)
        full, part = costs.recomputed(at, stage.recompute, stage.selective + stage.offloaded)
        backward_s, _ = divided_backward(costs, first=number == 0)
        for place, segment in enumerate(range(*at)):
            block = lowered.segments[segment].block
            price = share.blocks[block]
            held = (price.parameters, price.frozen)
            ahead, back = (gathered_beside(share, at, segment + step * data.piped) for step in (1, -1))
            exposed_s = data.exposed_forward_s(price.forward_s, *held)
            hidden_s = data.exposed_forward_s(0.0, *ahead) - data.exposed_forward_s(price.forward_s, *ahead)
            apart_s = open_s(share, price, backward=False) + exposed_s - slowed_s(share, hidden_s)
            last = segment == len(chain) - 1 and not chain.repeated[-1]
            copies_s = data.copies_s(float(sum(price.parameters.values())), float(sum(price.frozen.values())), last)
            ahead_s = float(chain.forward_s[segment]) - apart_s - copies_s[0]
            totals[block, FORWARD] += m * ahead_s
            if not share.prices.training:
                continue
            exposed_s = data.exposed_backward_s(price.backward_s, *held, last)
            alone_s, under_s = (data.exposed_backward_s(s, *back, last) for s in (0.0, price.backward_s))
            hidden_s = alone_s - under_s
            apart_s = open_s(share, price, backward=True) + exposed_s - slowed_s(share, hidden_s)
            back_s = float(backward_s[segment]) - apart_s - copies_s[1]
            again = [moved for moved in price.moves if moved.again and not share.hosts]
            gathers_s = sum(crossing_s(share.prices, whole_again(moved), backward=False) for moved in again)
            gathers_s -= (1 + share.prices.device.overlap_slowdown) * sum(moved.hidden_again_s for moved in again)
            partly_s = (float(chain.again_s[segment]) - gathers_s) * bool(part[place])
            totals[block, BACKWARD] += m * (back_s + (ahead_s if full[place] else partly_s))
    return totals


def gathered_beside(share: RankShare, at: tuple[int, int], segment: int) -> tuple[Held, Held]:
    """Parameters of a segment, trained and frozen, that ZeRO gathers while the one next to it computes: none where a
    stage hasn't it. Without a pipeline each counts as gathered under its own segment."""
    if segment not in range(*at):
        return {}, {}
    price = share.blocks[share.plan.lowered.segments[segment].block]
    return price.parameters, price.frozen


def slowed_by_moves(share: RankShare) -> Mapping[Pool, float]:
    """Of these seconds what the blocks' own collectives cost the compute beside which they run."""
    found: dict[Pool, float] = defaultdict(float)
    uses, full, part = share.uses()
    for index, price in enumerate(share.blocks):
        again = 0.0 if share.hosts else sum(moved.hidden_again_s for moved in price.moves)
        ahead, back = (sum(getattr(m, name) for m in price.moves) for name in ("hidden_forward_s", "hidden_backward_s"))
        found[index, FORWARD] = share.microbatches * slowed_s(share, uses[index] * ahead)
        behind = uses[index] * back + full[index] * ahead + part[index] * again
        found[index, BACKWARD] = share.microbatches * slowed_s(share, behind)
    return found


def beside_collectives(trace: RankTrace, seconds: Sequence[float]) -> set[int]:
    """The numbers of the operators that are launched while a collective of their own stream runs: after its issue, and
    before what waits for it."""
    found, running = set(), dict[int, int]()
    for call in trace.calls:
        if call.kind == "collective" and seconds[call.number]:
            running[call.number] = call.stream
        elif call.kind == "wait":
            for number in call.of:
                running.pop(number, None)
        elif call.kind in LAUNCHED and call.stream in running.values():
            found.add(call.number)
    return found


def slowed_once(share: RankShare) -> Mapping[str, float]:
    """What collectives of parameters once a step cost the compute beside which they run: gathers under the first
    forward, sums of gradients under the last backward."""
    costs, data = share.stage_model, share.stage_model.data
    hidden_s = sum(costs.once_s(at)[1] + summed_beside_s(costs, at)[1] for at in share.intervals)
    ahead_s = 0.0
    if data.shared and 0 < data.zero < 3:
        ahead_s = sum(
            data.sharded_once_s(costs.unit_bytes(at), costs.forward_s(at), 0.0, costs.chain.opening(at))[0][1]
            for at in share.intervals
        )
    return {FORWARD: slowed_s(share, ahead_s), BACKWARD: slowed_s(share, hidden_s - ahead_s)}


def slowed_s(share: RankShare, hidden_s: float) -> float:
    """What collectives that hide so many seconds cost the compute beside them (``cost_models.collective.overlapped``);
    the rest of what they take is theirs."""
    return share.prices.device.overlap_slowdown * hidden_s


def open_s(share: RankShare, price: BlockCost, *, backward: bool) -> float:
    """Seconds of a block's own collectives that nothing hides: a call of the trace has them. What slows the compute
    while they run beside it is the compute's (``cost_models.collective.overlapped``)."""
    slowdown = share.prices.device.overlap_slowdown
    hidden_s = sum(m.hidden_backward_s if backward else m.hidden_forward_s for m in price.moves)
    return sum(crossing_s(share.prices, m, backward=backward) for m in price.moves) - (1 + slowdown) * hidden_s


def copied_once_s(share: RankShare) -> tuple[float, float]:
    """Of these copies fully_shard's: of what is gathered, of what is scattered."""
    return share.stage_model.data.sharded_copies_once_s(sum(map(share.stage_model.parameter_bytes, share.intervals)))


def copied_s(share: RankShare) -> Mapping[str, float]:
    """Seconds of fully_shard's copies in a step by its operator: those once a step, and in each microbatch."""
    data, chain = share.stage_model.data, share.stage_model.chain
    gathered_s, scattered_s = copied_once_s(share)
    for segment in (n for at in share.intervals for n in range(*at)):
        size = float(chain.parameters[segment])
        last = segment == len(chain) - 1 and not chain.repeated[-1]
        ahead_s, back_s = data.copies_s(size, float(chain.gathered_frozen[segment]), last)
        added_s = data.scattered_copy_s(size) if data.scatters_each else 0.0
        gathered_s += share.microbatches * (ahead_s + back_s - added_s)
        scattered_s += share.microbatches * added_s
    return {name: s for name, s in ((GATHERED_COPIES, gathered_s), (SCATTERED_COPIES, scattered_s)) if s}


def update_s(share: RankShare) -> float:
    """Of the optimizer on a rank, and of the copies beside the collectives once a step."""
    return sum(share.stage_model.once_s(at)[3] for at in share.intervals)


def met_s(share: RankShare) -> float:
    """Of replicas that meet their neighbours after each update, or pull from servers."""
    costs, data = share.stage_model, share.stage_model.data
    meets = (data.neighbours > 0 and data.local_steps == 1) or data.servers > 0
    before_s = sum(pushed_s(costs, at)[0] for at in share.intervals) if data.servers else 0.0
    return sum(costs.once_s(at)[0] for at in share.intervals) - before_s if meets else 0.0


def spread(found: list[float], total_s: float, calls: Sequence[Call], weights: Sequence[float]) -> None:
    """Shares seconds out over calls in proportion to weights."""
    whole = sum(weights)
    for call, weight in zip(calls, weights, strict=True):
        found[call.number] = total_s * (weight / whole if whole else 1 / len(calls))


def lengthen(found: list[float], more_s: float, calls: Sequence[Call]) -> None:
    """Has calls take longer, in proportion to what they take."""
    whole = sum(found[call.number] for call in calls)
    for call in calls:
        found[call.number] += more_s * (found[call.number] / whole if whole else 1 / len(calls))


def weights_of(share: RankShare, calls: Sequence[Launched]) -> list[float]:
    """How the calls of a pool share its seconds: a statement's by its price, which its operators share by what they
    compute and move; those of no statement by that alone."""
    price_s = statement_prices(share, calls[0].place.block or 0)
    work = [roofline_s(share, each.call) for each in calls]
    keys = [(each.place.statement, each.phase == BACKWARD) for each in calls]
    total: dict[tuple, float] = defaultdict(float)
    for each, key, seconds in zip(calls, keys, work, strict=True):
        total[key, each.call.during] += seconds
    return [
        price_s[key] * seconds / total[key, each.call.during] if price_s.get(key) and seconds else seconds
        for each, key, seconds in zip(calls, keys, work, strict=True)
    ]


def statement_prices(share: RankShare, block: int) -> Mapping[tuple[str, bool], float]:
    """Seconds of each operator of a block, by its name and whether of its backward; collectives inside aside."""
    found = {}
    operators, prices = share.plan.operators[block], share.prices
    for name, strategy in share.plan.record.chosen.blocks[block].strategies:
        cost, inside = prices.operator(operators[name], strategy), prices.inside(operators[name], strategy)
        found[name, False] = cost.forward_s - sum(each.open_forward_s for each in inside)
        found[name, True] = cost.backward_s - sum(each.open_backward_s for each in inside)
    return found


def roofline_s(share: RankShare, call: Call) -> float:
    """Seconds in which a device could do a call: the longer of its FLOPs at the peak and its bytes at memory's pace."""
    peak = max(share.prices.device.peak_flops_per_s.values())
    return max(call.flops / peak, share.prices.cold_s(call.moved or call.bytes))
