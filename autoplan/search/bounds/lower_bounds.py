"""Lower bounds on the step time of any plan of a candidate: without a memory limit, and under one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from autoplan.cost.interleaved import is_interleaved, splits
from autoplan.cost.prices import STREAMED
from autoplan.cost.step import sharing_of
from autoplan.search.bounds.block_bounds import BlockBounds, leanest_of, rates_of
from autoplan.search.bounds.floors import lower_bound, slots, uneven_slots
from autoplan.search.bounds.knapsack import knapsack_bound, short_of_bytes
from autoplan.search.candidate_costs import CandidateCosts, exposed, shared_once_s
from autoplan.search.inter_op.byte_prices import steep
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.pareto import kept_alone, states_alone
from autoplan.search.intra_op.solve import FloorOf
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.heterogeneous import devices_of, pace
from autoplan.solver.engines import Infeasible

MOST_ALIKE = 6  # doublings of the microbatches, beyond which all candidates' shares of it are said to be alike


@dataclass
class LowerBounds:
    """Bounds candidates from below; keeps what it found until the search ends.

    of_points  seconds by the operators of one point
    unlimited  seconds without a memory limit
    limited    seconds under one
    of_blocks  what is known of operators, by these and what of a candidate changes it: schedules don't
    """

    costs: CandidateCosts
    of_points: dict[tuple[Candidate, IntraOpPlan], float] = field(default_factory=dict)
    unlimited: dict[Candidate, float] = field(default_factory=dict)
    limited: dict[tuple[Candidate, float], float] = field(default_factory=dict)
    of_blocks: dict[tuple[Candidate, bool, tuple[IntraOpPlan, ...]], BlockBounds] = field(default_factory=dict)

    def of_point_s(self, candidate: Candidate, point: IntraOpPlan) -> float:
        """Seconds of a step with these operators, were the chain cut at will and nothing recomputed. What happens once
        a step takes at least a stage's even share of what it takes for the whole chain on one."""
        if (candidate, point) not in self.of_points:
            self.of_points[candidate, point] = self.evenly_s(candidate, point)
        return self.of_points[candidate, point]

    def unlimited_s(self, candidate: Candidate) -> float:
        """Seconds of a step of the fastest operators, less their solver's gap, with no limit on bytes; on several kinds
        of device, what their own operators take at least."""
        if candidate not in self.unlimited:
            self.unlimited[candidate] = self.by_operators_s(candidate)
        return self.unlimited[candidate]

    def limited_s(self, candidate: Candidate, memory_limit: float, limit_s: float = math.inf) -> float:
        """Seconds of a step under a memory limit, by what pipeline ranks can hold of the chain in a given time;
        infinite where nothing fits. Takes as long for many layers as for few.

        limit_s  a bound from which on nobody asks for a tighter one
        """
        key = (candidate, memory_limit)
        if key not in self.limited:
            least_s = self.unlimited_s(candidate)
            if candidate.offload != "none" and not devices_of(self.costs.operators.topology, candidate):
                least_s = max(least_s, self.with_host_s(candidate))
            if least_s >= limit_s:
                return least_s
            self.limited[key] = max(least_s, self.by_bytes_s(candidate, memory_limit))
        return self.limited[key]

    def with_host_s(self, candidate: Candidate) -> float:
        """Seconds of a step with what the host adds to the leanest operators known: which are the fastest is asked at
        the device's own pace."""
        known, fastest = self.known(candidate, short=False), self.costs.operators.fastest(candidate)
        stage_model = self.costs.scheduled(known.stage_model, candidate)
        return self.spread_s(stage_model, known.once_s) * (1 - fastest.gap) - self.apart_s(candidate)

    def evenly_s(self, candidate: Candidate, point: IntraOpPlan) -> float:
        operators = self.costs.operators
        devices = devices_of(operators.topology, candidate)
        if not devices:
            stage_model = self.costs.stage_model(candidate, point)
            return self.spread_s(stage_model, exposed(*stage_model.once_s((0, len(stage_model.chain)))))
        chain_s = sum(n * (point.prices[b].forward_s + point.prices[b].backward_s) for b, n in self.uses.items())
        own = {d: [p.forward_s + p.backward_s for p in point.on(d)] for d in dict.fromkeys(devices)}
        slowest_s = [p.forward_s + p.backward_s for p in point.prices]
        return chain_s * uneven_slots(candidate, operators, [pace(own[d], slowest_s) for d in devices])

    def spread_s(self, stage_model: StageModel, once_s: float) -> float:
        """Seconds of a step of a chain that is spread evenly, with what all of it takes once a step."""
        return (self.line_s(stage_model) + once_s / stage_model.candidate.pp) * self.costs.slowdown

    def line_s(self, stage_model: StageModel) -> float:
        """Of these those of the schedule. Messages that run beside compute are waited for by the first microbatch; in
        1F1B by one of each ``pp`` that follow one another, too (``local_search.least_line_s``)."""
        candidate, operators, chain = stage_model.candidate, self.costs.operators, stage_model.chain
        chain_s, messages_s = float((chain.forward_s + chain.backward_s).sum()), stage_model.least_messages_s
        if not stage_model.ahead:
            return (chain_s + messages_s) * slots(candidate, operators) / candidate.pp
        if is_interleaved(candidate.schedule):
            return chain_s * slots(candidate, operators) / candidate.pp
        whole_s = chain_s * slots(candidate, operators) / candidate.pp + messages_s
        trips, left = divmod(candidate.microbatches - 1, candidate.pp)
        if candidate.schedule != "1f1b" or not trips:
            return whole_s
        rest_s = chain_s * slots(replace(candidate, microbatches=left + 1), operators) / candidate.pp + messages_s
        return max(whole_s, trips * (chain_s + messages_s) + rest_s)

    def by_operators_s(self, candidate: Candidate) -> float:
        operators = self.costs.operators
        if devices_of(operators.topology, candidate):
            return lower_bound(operators, candidate)
        fastest = operators.fastest(candidate)
        if candidate.offload != "none":  # what the host adds is asked of leaner operators, too (``with_host_s``)
            stage_model = self.costs.stage_model(candidate, fastest)
            own_s = self.own_s(fastest, adding_rate(stage_model))
            chain = stage_model.chain.holding({"backward_s": own_s - stage_model.chain.forward_s})
            return self.spread_s(replace(stage_model, chain=chain), 0.0) * (1 - fastest.gap) - self.apart_s(candidate)
        known_s, other = self.of_point_s(candidate, fastest) * (1 - fastest.gap), self.costs.together(candidate)
        if other is None:
            return known_s
        lean = operators.priced(candidate, states_alone(fastest.solution))
        data_s = min(self.reduced_s(candidate, point) for point in (fastest, lean))
        return min(known_s, (other.least_s * candidate.microbatches + data_s) / candidate.pp * self.costs.slowdown)

    def reduced_s(self, candidate: Candidate, point: IntraOpPlan) -> float:
        """Seconds of a step that the data axis takes beside what is hidden."""
        stage_model = self.costs.stage_model(candidate, point)
        spent_s, hidden_s, _, _ = stage_model.once_s((0, len(stage_model.chain)))
        return spent_s - hidden_s + candidate.microbatches * float(stage_model.chain.exposed_s.sum())

    def apart_s(self, candidate: Candidate) -> float:
        """Seconds of a step by which bounds that take the fastest operators for the least may be too high."""
        other = self.costs.together(candidate)
        return 0.0 if other is None else other.apart_s * candidate.microbatches * self.costs.slowdown

    def by_bytes_s(self, candidate: Candidate, memory_limit: float) -> float:
        """The knapsack bound; 0 where it says nothing: ranks share devices or are of several kinds, nothing can be
        recomputed, or bytes aren't short."""
        operators, costs = self.costs.operators, self.costs
        shared = sharing_of(operators.topology.device, candidate.pp, candidate.stage_devices).gain != 1
        if shared or devices_of(operators.topology, candidate) or self.keeps_everything(candidate):
            return 0.0
        fastest = operators.fastest(candidate)
        if not np.isfinite(memory_limit) or not short_of_bytes(costs.stage_model(candidate, fastest), memory_limit):
            return 0.0
        known = self.known(candidate)
        once_s = known.once_s / candidate.pp
        slowed = costs.slowdown * (1 - fastest.gap if is_interleaved(candidate.schedule) else 1.0)
        stage_model, unlimited_s = self.costs.scheduled(known.stage_model, candidate), self.unlimited_s(candidate)
        schedule_s = knapsack_bound(known, stage_model, memory_limit, max(unlimited_s / slowed - once_s, 0.0))
        return (schedule_s + once_s) * slowed - self.apart_s(candidate)

    def of_cuts_s(self, stage_model: StageModel, point: IntraOpPlan, memory_limit: float) -> float:
        """The knapsack bound with these operators alone, however the chain is cut; 0 as of ``by_bytes_s``."""
        candidate, topology, chain = stage_model.candidate, self.costs.operators.topology, stage_model.chain
        unlike = stage_model.ranks or sharing_of(topology.device, candidate.pp, candidate.stage_devices).gain != 1
        if unlike or not np.isfinite(memory_limit) or not short_of_bytes(stage_model, memory_limit):
            return 0.0
        spent_s, first = chain.forward_s + chain.backward_s, {b: n for n, b in reversed([*enumerate(self.blocks)])}

        def floor(block: int, _: float, price: np.ndarray) -> np.ndarray:
            return np.asarray(spent_s[first[block]] + price * chain.kept[first[block]])

        rates, once_s = rates_of(point.prices, self.uses), shared_once_s(stage_model) / candidate.pp
        known = BlockBounds(stage_model, chain, spent_s, self.blocks, floor, rates, chain.forward_s)
        least_s = self.of_point_s(candidate, point) / self.costs.slowdown - once_s
        return (knapsack_bound(known, stage_model, memory_limit, max(least_s, 0.0)) + once_s) * self.costs.slowdown

    def keeps_everything(self, candidate: Candidate) -> bool:
        """Whether nothing at all can be recomputed, of one stage with a tensor axis."""
        again = self.costs.operators.prepared.training and candidate.recompute != "none" and max(self.uses.values()) > 1
        return self.costs.rigid(candidate) and not again

    def known(self, candidate: Candidate, *, short: bool = True) -> BlockBounds:
        """What is known of a candidate's operators on one kind of device; ``short`` of bytes, perhaps. That of one
        with another schedule, where it is the same."""
        points = self.points(candidate, short=short)
        key = (replace(candidate, schedule="", virtual_stages=1), splits(candidate.schedule), tuple(points))
        if key not in self.of_blocks:
            self.of_blocks[key] = self.known_of(candidate, points)
        return self.of_blocks[key]

    def known_of(self, candidate: Candidate, points: Sequence[IntraOpPlan]) -> BlockBounds:
        operators = self.costs.operators
        fastest, each = points[0], [self.costs.stage_model(candidate, point) for point in points]
        rate, chain, floor = adding_rate(each[0]), each[0].chain, operators.floor(candidate)
        if not operators.fuses:
            kept = [min(price.kept_bytes for price in alike) for alike in zip(*(p.prices for p in points), strict=True)]
            floor = partial(with_kept, floor, kept)
        floor = partial(adding, floor, rate)
        own = [self.own_s(point, rate) for point in points]
        chains = [stage_model.chain for stage_model in each]
        beside = [chain.forward_s + chain.backward_s - s for chain, s in zip(chains, own, strict=True)]
        spent_s = own[0] + np.minimum.reduce(beside)
        stage_model = replace(each[0], chain=chain.holding({"backward_s": spent_s - chain.forward_s}))
        lean = leanest_of([found.chain for found in each])
        rates, once_s = rates_of(fastest.prices, self.uses), min(map(once_at_least_s, each))
        forward_s = np.maximum.reduce([found.chain.forward_s for found in each])
        return BlockBounds(stage_model, lean, own[0], self.blocks, floor, rates, forward_s, once_s)

    def points(self, candidate: Candidate, *, short: bool = True) -> list[IntraOpPlan]:
        """The fastest operators, and those that hold least: of everything, of parameters, of what is kept; and, where
        bytes are short, altogether."""
        operators = self.costs.operators
        fastest = operators.fastest(candidate)
        if candidate.operator_ways == 1:
            return [fastest]
        steeply = steep(fastest.solution, self.costs.stage_model(candidate, fastest))
        prices = (steeply, states_alone(fastest.solution), kept_alone(fastest.solution))
        points = [fastest, *(operators.priced(candidate, weights) for weights in prices)]
        if short and self.costs.rigid(candidate):
            with suppress(Infeasible):  # the solver was out of time
                joint = self.costs.joint(candidate)
                points += [operators.taken(candidate, s) for s in (joint.leanest, joint.leanest_between)]
        return points

    def own_s(self, point: IntraOpPlan, rate: float) -> np.ndarray:
        """[segments] forward and backward, and the adding up of gradients, of these operators."""
        spent = [p.forward_s + p.backward_s + rate * sum(p.parameters.values()) for p in point.prices]
        return np.array(spent)[list(self.blocks)]

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Of each segment."""
        return tuple(segment.block for segment in self.costs.operators.prepared.model.segments)

    @cached_property
    def uses(self) -> Counter[int]:
        """Segments of each block."""
        return Counter(self.blocks)


def adding(floor: FloorOf, rate: float, block: int, state: float, kept: np.ndarray) -> np.ndarray:
    """A floor with the seconds that gradients' adding up takes for each byte of parameters."""
    return floor(block, state + rate, kept)


def adding_rate(stage_model: StageModel) -> float:
    """Seconds for each byte of a segment's parameters in which its gradients are added up, a microbatch's share of a
    step: those of every microbatch but the first, of whose share as much is said as many candidates have alike. Nothing
    is said where some aren't trained: the operator problem counts bytes of both."""
    data, many = stage_model.data, stage_model.candidate.microbatches
    share = 1 - 2.0 ** -min(math.floor(math.log2(many)), MOST_ALIKE)
    each_s = (data.accumulate_s(2 * STREAMED) - data.accumulate_s(STREAMED)) / STREAMED
    return share * each_s if data.prices.training and not any(stage_model.chain.held_frozen.segments) else 0.0


def with_kept(floor: FloorOf, least: Sequence[float], block: int, state: float, kept: np.ndarray) -> np.ndarray:
    """A floor whose bytes kept are those of the leanest operators known: eager programs keep less than the operator
    problem counts."""
    return floor(block, state, np.zeros(1)) + kept * least[block]


def once_at_least_s(stage_model: StageModel) -> float:
    """Seconds once a step of the whole chain, but for sums of gradients over the tensor axes: operators that are slower
    in a microbatch may have none."""
    summed_s = 0.0 if stage_model.data.late else stage_model.once_s((0, len(stage_model.chain)))[2]
    return shared_once_s(stage_model) - summed_s
