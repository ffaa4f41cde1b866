"""One candidate, priced: its operators' layouts, its cuts, its step time and memory."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autoplan.cost import Timeline, timeline
from autoplan.cost.interleaved import is_interleaved
from autoplan.cost.step import sharing_of, straggling
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.options import Inference, Training
from autoplan.search.bounds.lower_bounds import LowerBounds
from autoplan.search.budget import FULL, SearchBudget
from autoplan.search.candidate_costs import CandidateCosts, exposed, shared_once_s
from autoplan.search.inter_op.byte_prices import EASING, duals, host_price, steep
from autoplan.search.inter_op.chain_costs import ChainCosts, Division, chain_costs_of, unties
from autoplan.search.inter_op.interleaved import ChunkCuts, DivisionSearch, evenly
from autoplan.search.inter_op.local_search import Bound, Runs, by_round_trips_s, has_few_cuts, refine
from autoplan.search.inter_op.partition import choose_cuts
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.pareto import between, states_alone
from autoplan.search.intra_op.solve import Solution, Weights
from autoplan.search.operator_problems import OperatorProblems
from autoplan.search.space.candidates import Candidate
from autoplan.search.step_seconds import scheduled, whole_s
from autoplan.solver.engines import Infeasible


@dataclass(frozen=True)
class Evaluated:
    """A candidate with the best that was found for it.

    step_s   of one optimizer step, by the schedule and what happens once a step
    memory   of each pipeline rank
    bound_s  that no cuts undercut under the same memory limit, with these operators or slower ones that keep as much
    """

    candidate: Candidate
    point: IntraOpPlan
    stage_model: StageModel
    stages: tuple[StageChoice, ...]
    memory: tuple[StageMemory, ...]
    step_s: float
    bound_s: float

    @cached_property
    def timeline(self) -> Timeline:
        return timeline(*scheduled(self.stage_model, self.stages))

    @property
    def recomputes(self) -> bool:
        return any(stage.recompute or stage.selective for stage in self.stages)

    @property
    def fullest(self) -> int:
        """The pipeline rank whose devices have least left, or lack most."""
        return max(range(len(self.memory)), key=lambda k: self.memory[k].total - self.stage_model.at(k).headroom)

    def over_bytes(self, memory_limit: float) -> int:
        """By how much the fullest stage exceeds the limit, which is that of the smallest device; 0 where it fits."""
        headroom = self.stage_model.at(self.fullest).headroom
        return max(0, round(self.memory[self.fullest].total - headroom - memory_limit))

    @property
    def exceeds_host(self) -> bool:
        """Whether more is kept on the host of some device than it holds."""
        data = (self.stage_model.at(k).data for k in range(len(self.memory)))
        pairs = zip(self.memory, data, strict=True)
        return any(memory.host > 0 and memory.host > each.host.memory_bytes for memory, each in pairs)


@dataclass
class Evaluator:
    """Prices candidates; keeps what it found until the search ends.

    seconds  spent on cuts
    begun    searches of chains of ranks with several stages, which a glance begins and an evaluation goes on with:
             other operators often cost the same
    """

    costs: CandidateCosts
    bounds: LowerBounds
    budget: SearchBudget
    seconds: float = 0.0
    begun: dict[Hashable, DivisionSearch] = field(default_factory=dict)

    @staticmethod
    def of(operators: OperatorProblems, training: Training | Inference, budget: SearchBudget = FULL) -> Evaluator:
        """With nothing priced yet."""
        costs = CandidateCosts(operators, training)
        return Evaluator(costs, LowerBounds(costs), budget)

    @property
    def operators(self) -> OperatorProblems:
        return self.costs.operators

    def evaluate(
        self, candidate: Candidate, memory_limit: float, limit_s: float = float("inf"), known_s: float = 0.0,
        point: IntraOpPlan | None = None,
    ) -> Evaluated | None:  # fmt: skip
        """The fastest plan of a candidate under a memory limit; None where none fits or takes less than ``limit_s``.

        known_s  that no plan of it undercuts
        point    the only operators that are tried; None: those that are sought

        The fastest operators that keep everything are the best where they fit. Where they don't, leaner ones, which
        may need less recomputation, are generated (``pareto``); where little can be recomputed, the fastest of those
        that fit are sought (``memory_constrained``). Where the host updates parameters, operators that have fewer of
        them may be quicker, whatever fits.
        """
        if point is not None:
            return self.with_point(candidate, point, memory_limit, limit_s)
        fastest = self.operators.fastest(candidate)
        anew = candidate.offload != "none" and not self.budget.quick
        bound_s = self.bounds.unlimited_s(candidate) if anew else self.bounds.of_point_s(candidate, fastest)
        least_s = max(known_s, bound_s)
        if least_s >= limit_s:
            return None
        best = None if self.idle(candidate, fastest) else self.with_point(candidate, fastest, memory_limit, limit_s)
        together = self.costs.together(candidate)
        others = [] if together is None else [together.fastest]
        if anew:
            others.append(self.operators.priced(candidate, host_price(self.costs.stage_model(candidate, fastest))))
        for point in (other for other in others if other is not fastest and not self.idle(candidate, other)):
            found = self.with_point(candidate, point, memory_limit, limit_s)
            best = found if best is None or (found is not None and found.step_s < best.step_s) else best
        if candidate.operator_ways == 1 or (best is not None and least_s >= best.step_s * (1 - self.budget.tolerance)):
            return best
        if limit_s < float("inf") and self.suffices(candidate, best):
            return best
        best = self.with_columns(candidate, best, memory_limit, limit_s, least_s)
        if best is not None and (self.budget.quick or least_s >= best.step_s * (1 - self.budget.tolerance)):
            return best
        return self.within_limit(candidate, best, memory_limit, limit_s) if self.costs.rigid(candidate) else best

    def glance(
        self, candidate: Candidate, memory_limit: float, limit_s: float, point: IntraOpPlan | None = None
    ) -> Evaluated | None:
        """What these operators, or the fastest, take with stages that are cut without a search; None as of
        ``with_point``."""
        point = point or self.operators.fastest(candidate)
        if self.idle(candidate, point):
            return None
        quick = replace(self, budget=replace(self.budget, quick=True), seconds=0.0)
        found = quick.with_point(candidate, point, memory_limit, limit_s)
        self.seconds += quick.seconds
        return found

    def suffices(self, candidate: Candidate, best: Evaluated | None) -> bool:
        """Whether leaner operators aren't sought for a quick answer beside a plan of some other candidate: they seldom
        win where several stages on a rank have lost, or where those that are fastest needn't recompute."""
        return self.budget.quick and (is_interleaved(candidate.schedule) if best is None else not best.recomputes)

    def lean_prices(self, candidate: Candidate, stage_model: StageModel, limit_s: float) -> Iterator[Weights]:
        """Prices of bytes to begin with, until some operators fit in time: bytes alone counted; half way to the
        fastest, since what is leanest may be too slow; those of parameters alone, since what is kept can be
        recomputed."""
        fastest = self.operators.fastest(candidate)
        leanest = steep(fastest.solution, stage_model)
        yield leanest
        midway = between(fastest.solution, self.operators.priced(candidate, leanest).solution, leanest)
        if midway is not None and limit_s < float("inf"):
            yield midway
        yield states_alone(fastest.solution)

    def with_columns(
        self, candidate: Candidate, best: Evaluated | None, memory_limit: float, limit_s: float, least_s: float
    ) -> Evaluated | None:
        """The best of the fastest operators and of leaner ones, each asked for by the stages of the one before; then of
        those between what is too fast to fit and what fits."""
        fastest = self.operators.fastest(candidate)
        stage_model, tried, last, ease = self.costs.stage_model(candidate, fastest), [fastest], best, 1.0
        fast, lean, leanest = fastest, None, self.lean_prices(candidate, stage_model, limit_s)
        for number in range(self.budget.leaner):
            if last is not None and self.out_of_reach(last, limit_s, number):
                break
            weights = next(leanest, None) if last is None else duals(last.stage_model, last.stages)
            if weights is None and last is None:
                break  # bytes alone counted, and still nothing fits
            if weights is None:  # it fits as it is: something between it and the fastest may, too
                ease *= EASING
                weights = steep(fastest.solution, stage_model, ease)
            point = self.operators.priced(candidate, weights)
            known = any(point is one for one in tried)
            if known and lean is not None:
                midway = between(fast.solution, lean.solution, weights)
                point = point if midway is None else self.operators.priced(candidate, midway)
            if any(point is one for one in tried):
                if last is None:
                    continue
                break
            tried.append(point)
            if self.idle(candidate, point) or self.bounds.of_point_s(candidate, point) >= limit_s:
                continue
            found = self.with_point(candidate, point, memory_limit, limit_s, last)
            if found is None and known:
                fast = point
            elif found is not None:
                last = found
                lean = point if lean is None or point.solution.time_s < lean.solution.time_s else lean
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
                limit_s = min(limit_s, best.step_s)
                if best.step_s * (1 - self.budget.tolerance) <= least_s:
                    break
        return best

    def out_of_reach(self, found: Evaluated, limit_s: float, number: int) -> bool:
        """Whether the last plan of a candidate whose stages are searched is so far from a limit that leaner operators,
        the first or further ones, won't bring it there."""
        times = self.budget.far if number == 0 else self.budget.further
        return is_interleaved(found.candidate.schedule) and found.step_s > limit_s * times

    def within_limit(
        self, candidate: Candidate, best: Evaluated | None, memory_limit: float, limit_s: float
    ) -> Evaluated | None:
        """The best of what is known and of operators chosen for what they hold altogether."""
        ways = (0, candidate.microbatches) if self.costs.together(candidate) else (0,)
        try:
            for point in (p for together in ways for p in self.fitting(candidate, together, memory_limit)):
                if self.idle(candidate, point) or self.bounds.of_point_s(candidate, point) >= limit_s:
                    continue
                found = self.with_point(candidate, point, memory_limit, limit_s)
                if found is not None and (best is None or found.step_s < best.step_s):
                    best, limit_s = found, min(limit_s, found.step_s)
        except Infeasible:  # the solver was out of time
            return best
        return best

    def fitting(self, candidate: Candidate, together: int, memory_limit: float) -> Iterator[IntraOpPlan]:
        """The operators that hold least, with which recomputation may do, with what stands for a moment and without;
        and the fastest of those that fit without.

        The operator problem doesn't count all that is held, so they are sought for one budget after another: that which
        leaves the last ones what they need beside, between the largest that was small enough and the smallest that
        was too large.
        """
        fastest, joint = self.operators.fastest(candidate), self.costs.joint(candidate, together)
        lean = [self.operators.taken(candidate, s) for s in (joint.leanest, joint.leanest_between)]
        yield from dict.fromkeys(lean)
        beside = [self.total(candidate, p) - joint.bytes(p.solution) for p in (fastest, *lean)]
        budget, fits, exceeds, tried = memory_limit - min(beside), 0.0, float("inf"), list[Solution]()
        for _ in range(self.budget.memory_budgets):
            solution = joint.quickest(budget)
            if solution is None or any(solution.options == one.options for one in tried):
                break
            tried.append(solution)
            point = self.operators.taken(candidate, solution)
            over = self.total(candidate, point) - memory_limit
            fits, exceeds = (fits, min(exceeds, budget)) if over > 0 else (max(fits, budget), exceeds)
            yield point
            budget = joint.bytes(solution) - over
            budget = budget if fits < budget < exceeds else (fits + exceeds) / 2

    def total(self, candidate: Candidate, point: IntraOpPlan) -> float:
        """Bytes that these operators need where nothing is recomputed."""
        found = self.with_point(candidate, point, float("inf"))
        assert found is not None
        return found.memory[found.fullest].total - found.stage_model.at(found.fullest).headroom

    def idle(self, candidate: Candidate, point: IntraOpPlan) -> bool:
        """Whether the same runs on fewer devices: a tensor axis that nobody asked for, and that splits nothing."""
        return candidate.operator_ways > 1 and point.is_idle(candidate.mesh) and not self.operators.split_weights

    def leanest(self, candidate: Candidate) -> Evaluated | None:
        """The plan of a candidate that needs the fewest bytes: every segment recomputed that may be. None where it has
        none that runs (``chain_costs.unties``)."""
        recompute = "full" if candidate.recompute == "auto" else candidate.recompute
        candidate = replace(candidate, recompute=recompute)
        fastest = self.operators.fastest(candidate)
        points = [fastest]
        if candidate.operator_ways > 1:
            prices = steep(fastest.solution, self.costs.stage_model(candidate, fastest)), states_alone(fastest.solution)
            points += [self.operators.priced(candidate, weights) for weights in prices]
        if self.costs.rigid(candidate):
            with suppress(Infeasible):  # the solver was out of time
                joint = self.costs.joint(candidate)
                points += [self.operators.taken(candidate, s) for s in (joint.leanest, joint.leanest_between)]
        found = [self.with_point(candidate, point, float("inf")) for point in points]
        return min((e for e in found if e is not None), key=lambda e: e.over_bytes(0.0), default=None)

    def with_point(
        self, candidate: Candidate, point: IntraOpPlan, memory_limit: float, limit_s: float = float("inf"),
        other: Evaluated | None = None,
    ) -> Evaluated | None:  # fmt: skip
        """The best cuts for these operators, or None where none fits or the schedule takes far more than a limit.

        other  the plan of other operators, from whose cuts a search goes on
        """
        start = time.perf_counter()
        stage_model = self.costs.stage_model(candidate, point)
        if is_interleaved(candidate.schedule):
            return self.with_chunks(stage_model, point, memory_limit, limit_s, other)
        options = [stage_model.at(stage).options(stage, memory_limit) for stage in range(candidate.pp)]
        seconds = [mix.seconds for mix in options]
        slow = [part - stage_model.at(stage).hidden_s(stage) for stage, part in enumerate(seconds)]
        cuts = choose_cuts(seconds, candidate.microbatches, slow)
        line_s = 0.0 if cuts is None else max(cuts.bound_s, by_round_trips_s(stage_model, seconds))
        self.seconds += time.perf_counter() - start
        gain = sharing_of(self.operators.topology.device, candidate.pp, candidate.stage_devices).gain
        if cuts is None or cuts.objective_s / gain >= limit_s * self.budget.runner_up:
            return None

        def price(runs: Runs) -> Evaluated:
            stages = tuple(
                StageChoice(*at, int(mix.full[at]), int(mix.selective[at]))
                for at, mix in zip(runs, options, strict=True)
            )
            return finish(candidate, point, stage_model, stages, self.bound_s(stage_model, point, line_s / gain))

        first = price(cuts.stages)
        if first.step_s >= limit_s * self.budget.runner_up:
            return first
        bound = Bound(
            stage_model, seconds, lambda stage, at: exposed(*stage_model.at(stage).once_s(at)),
            self.costs.slowdown, gain,
        )
        found = refine(first, cuts.stages, bound, price)
        return replace(found, bound_s=found.step_s * (1 - point.gap)) if has_few_cuts(bound) else found

    def with_chunks(
        self, stage_model: StageModel, point: IntraOpPlan, memory_limit: float, limit_s: float, other: Evaluated | None
    ) -> Evaluated | None:
        """The same of a schedule that gives a rank several stages, or splits the backward."""
        start, candidate = time.perf_counter(), stage_model.candidate
        gain = sharing_of(self.operators.topology.device, candidate.pp, candidate.stage_devices).gain
        once = shared_once_s(stage_model) / candidate.pp
        left_s = limit_s / self.costs.slowdown - once
        if np.isfinite(limit_s) and self.bounds.of_cuts_s(stage_model, point, memory_limit) >= limit_s:
            return None
        chain_costs = chain_costs_of(stage_model, memory_limit)
        start_at = None if other is None else Division.of(other.stages)
        found = self.chunks(chain_costs, left_s * gain, start_at) if np.isfinite(memory_limit) else evenly(chain_costs)
        self.seconds += time.perf_counter() - start
        if found is None or found.cuts.objective_s / gain >= limit_s * self.budget.runner_up:
            return None
        stages = found.division.choices
        if unties(stage_model, stages):
            return None
        bound_s = self.bound_s(stage_model, point, found.cuts.bound_s / gain)
        return finish(candidate, point, stage_model, stages, bound_s)

    def bound_s(self, stage_model: StageModel, point: IntraOpPlan, schedule_s: float) -> float:
        """Seconds of a step by a bound on its schedule. What happens once a step takes at least an even share of what
        it takes for the whole chain."""
        once_s = min(map(shared_once_s, stage_model.ranks or (stage_model,)))
        return (schedule_s + once_s / stage_model.candidate.pp) * self.costs.slowdown * (1 - point.gap)

    def chunks(self, chain_costs: ChainCosts, limit_s: float, start: Division | None) -> ChunkCuts | None:
        """The best division (``interleaved``). A search that no limit ended goes on, however high the limit is now.

        start  the best with other operators
        """
        search = self.begun.get(chain_costs.key)
        if search is None or (search.limit_s < limit_s and search.given_up):
            search = self.begun[chain_costs.key] = DivisionSearch(chain_costs, limit_s)
        search.limit_s = limit_s
        if start is not None:
            return search.go_on(start, searches=not self.budget.quick)
        return search.glance() if self.budget.quick else search.run(thorough=self.budget.searched is None)


def finish(
    candidate: Candidate, point: IntraOpPlan, stage_model: StageModel, stages: tuple[StageChoice, ...],
    bound_s: float = 0.0,
) -> Evaluated:  # fmt: skip
    """Runs the schedule, and adds what happens once a step."""
    topology, memory = stage_model.data.prices.topology, stage_model.memory_of(stages)
    nodes = topology.devices // topology.levels[0].size
    step_s = whole_s(stage_model, stages) * straggling(nodes, topology.device)
    return Evaluated(candidate, point, stage_model, stages, memory, step_s, min(bound_s, step_s))
