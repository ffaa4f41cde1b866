"""One search in progress: the model, the cluster, and every candidate bounded or priced so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoplan.cluster import ClusterSpec
from autoplan.cost.interleaved import is_interleaved
from autoplan.cost.step import optimizer_passes, optimizer_states, reduced_ratio, stored_ratio
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Model, batch_rows
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import Constraint, check_targets
from autoplan.search.bounds.floors import least_bytes, lower_bound
from autoplan.search.budget import FAST, FULL, SearchBudget
from autoplan.search.evaluate import Evaluated, Evaluator
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.problem_inputs import Prepared, prepare
from autoplan.search.operator_problems import Key, OperatorProblems, Overlaps, uses_tensor_axis
from autoplan.search.space.candidates import Candidate, SpaceLimits, all_candidates
from autoplan.search.space.pinned_checks import check_offload, check_pinned, check_trained, no_setting
from autoplan.search.space.sizes import experts_of, tokens_of

FEW_TRAINED = 0.05  # bytes of trained parameters for each of frozen ones, up to which they are adapters


@dataclass
class SearchState:
    """What a search knows.

    found   every candidate that was priced, None where nothing of it fits or all of it takes too long
    searched  of these all that a glance wasn't all of
    bounds  seconds that no plan of a candidate undercuts, of every candidate that was considered
    leanest  the plan of a candidate that needs the fewest bytes, None where it has none that runs
    infeasibilities  why operators can't be laid out on a candidate's axes, None where they can, by operator problem
    """

    prepared: Prepared
    cluster: ClusterSpec
    training: Training | Inference
    limits: SpaceLimits
    operators: OperatorProblems
    evaluator: Evaluator
    budget: SearchBudget = FULL
    found: dict[Candidate, Evaluated | None] = field(default_factory=dict)
    searched: set[Candidate] = field(default_factory=set)
    bounds: dict[Candidate, float] = field(default_factory=dict)
    leanest: dict[Candidate, Evaluated | None] = field(default_factory=dict)
    infeasibilities: dict[Key, ParallelismError | None] = field(default_factory=dict)

    def least_bytes(self, candidate: Candidate) -> float:
        """Bytes that the fullest device holds at least."""
        return least_bytes(self.operators, candidate, self.training)

    def leanest_of(self, candidate: Candidate) -> Evaluated | None:
        """The plan of a candidate that needs the fewest bytes, made once."""
        if candidate not in self.leanest:
            self.leanest[candidate] = self.evaluator.leanest(candidate)
        return self.leanest[candidate]

    def unlimited_s(self, candidate: Candidate) -> float:
        """The lower bound on a candidate's step time by its fastest operators; infinite where these turn out to have no
        way to lie on its axes."""
        return self.bounded_s(candidate, self.evaluator.bounds.unlimited_s)

    def limited_s(self, candidate: Candidate, memory_limit: float, limit_s: float = math.inf) -> float:
        """The tightest lower bound, under a memory limit, or one that is no less than ``limit_s``."""
        return self.bounded_s(candidate, lambda s: self.evaluator.bounds.limited_s(s, memory_limit, limit_s))

    def bounded_s(self, candidate: Candidate, bound: Callable[[Candidate], float]) -> float:
        if self.infeasibility(candidate) is not None:
            return math.inf
        try:
            return bound(candidate)
        except ParallelismError as error:
            self.infeasibilities[self.operators.key(candidate)] = error
            return math.inf

    def evaluate(
        self, candidate: Candidate, memory_limit: float, limit_s: float = math.inf, point: IntraOpPlan | None = None
    ) -> Evaluated | None:
        """The fastest plan of a candidate that fits and takes less than ``limit_s``, if any is found; ``point`` as of
        ``Evaluator.evaluate``."""
        if self.infeasibility(candidate) is not None:
            return None
        self.searched.add(candidate)
        try:
            found = self.evaluator.evaluate(candidate, memory_limit, limit_s, self.bounds.get(candidate, 0.0), point)
        except ParallelismError as error:
            self.infeasibilities[self.operators.key(candidate)] = error
            return None
        if found is not None and found.exceeds_host:
            found = None
        glanced = self.found.get(candidate)
        if glanced is None or (found is not None and found.step_s < glanced.step_s):
            self.found[candidate] = found
        return found

    def glance(
        self, candidate: Candidate, memory_limit: float, limit_s: float, point: IntraOpPlan | None = None
    ) -> Evaluated | None:
        """A plan of these operators, or of a candidate's fastest, its stages cut without a search; None where that
        doesn't fit or takes far more than ``limit_s``, and in a quick search, whose answers are no dearer than this."""
        if self.budget.quick:
            return None
        try:
            found = self.evaluator.glance(candidate, memory_limit, limit_s, point)
        except ParallelismError as error:
            self.infeasibilities[self.operators.key(candidate)] = error
            return None
        if found is None or found.exceeds_host:
            return None
        self.found[candidate] = found
        return found

    def feasible(self, possible: Sequence[Candidate]) -> list[Candidate]:
        """The candidates whose operators can be laid out on their axes: rows may not divide over microbatches, and on a
        context axis heads may be too few for one way of attention, and a mask in the way of another."""
        return [candidate for candidate in possible if self.infeasibility(candidate) is None]

    def infeasibility(self, candidate: Candidate) -> ParallelismError | None:
        """Why a candidate's operators can't be laid out on its axes; None where they can."""
        key = self.operators.key(candidate)
        if key not in self.infeasibilities:
            try:
                self.operators.entry(candidate)
                self.infeasibilities[key] = None
            except ParallelismError as error:
                self.infeasibilities[key] = error
        return self.infeasibilities[key]

    def check_any_feasible(self, possible: Sequence[Candidate]) -> None:
        """Raises what keeps the first of these candidates from being, where none of them can be."""
        first = self.infeasibility(possible[0])
        if first is not None and all(self.infeasibility(candidate) is not None for candidate in possible):
            raise first

    def gap(self, best: Evaluated) -> float:
        """By which share of the best plan's time a plan of any candidate could still be quicker, as far as the search
        knows: by the bounds that it used, and where a candidate's cuts alone were open, by the bound on these."""
        least_s = min((self.proven_s(candidate) for candidate in self.bounds), default=0.0)
        return max(0.0, 1 - least_s / best.step_s)

    def proven_s(self, candidate: Candidate) -> float:
        if self.operators.key(candidate) in self.operators.unsolved:
            return lower_bound(self.operators, candidate)
        found, bound_s = self.found.get(candidate), self.bounds[candidate]
        return bound_s if found is None or not self.is_cut_alone(found) else max(bound_s, found.bound_s)

    def is_cut_alone(self, found: Evaluated) -> bool:
        """Whether no other operators could be quicker, so that cuts and recomputation are all there is to choose: there
        is no tensor axis, or the fastest operators keep everything, on devices alike."""
        if is_interleaved(found.candidate.schedule) and found.stage_model.chain.shares:  # counted for each reader
            return False
        if found.candidate.operator_ways == 1:
            return True
        if found.recomputes or found.stage_model.ranks:
            return False
        fastest, other = self.operators.fastest(found.candidate), self.evaluator.costs.together(found.candidate)
        return found.point is fastest and other is None

    def pinned_to(self, parallelism: Parallelism) -> SearchState:
        """The same model and cluster under other pinned fields, sharing what doesn't depend on them. Operators of other
        fields are solved as in a full search, for the few candidates that stand beside a plan."""
        budget = affordable(FULL, self.prepared)
        operators = self.operators.pinned_to(parallelism, budget.quick)
        if operators is self.operators:
            return replace(self, found={}, searched=set(), bounds={})
        evaluator = Evaluator.of(operators, self.training, budget)
        evaluator.costs.schedules = self.evaluator.costs.schedules
        return replace(
            self, operators=operators, evaluator=evaluator, budget=budget, found={}, searched=set(), bounds={},
            infeasibilities={},
        )  # fmt: skip

    def beside(self) -> SearchState:
        """The same search on the budget of what stands beside a plan; what was found is known."""
        budget = self.budget.beside
        return replace(self, evaluator=replace(self.evaluator, budget=budget), budget=budget)

    def quickly(self) -> SearchState:
        """The same search on the budget of a quick one; what was solved is known."""
        operators = replace(self.operators, quick=True, known=dict(self.operators.known))
        evaluator = Evaluator.of(operators, self.training, FAST)
        return replace(self, operators=operators, evaluator=evaluator, budget=FAST, found={}, searched=set(), bounds={})


def begin(
    model: Model,
    cluster: ClusterSpec,
    training: Training | Inference,
    parallelism: Parallelism,
    constraints: Sequence[Constraint] = (),
    budget: SearchBudget = FULL,
) -> SearchState:
    """Everything that stands before the first candidate: rules, the batch's axes, checks of what is pinned."""
    trains = isinstance(training, Training)
    check_offload(parallelism, cluster, training)
    check_trained(parallelism, training)
    check_targets(constraints, model)
    apart = training.microbatch_statistics
    prepared = prepare(model, constraints, fuses=training.compile, training=trains, apart=apart)
    only_one = tuple((axis, split.reason) for axis, split in prepared.batch.items() if split.reason)
    sizes = (cluster.devices, cluster.devices_per_node, batch_rows(model), len(model.segments))
    tokens, experts = tokens_of(model, prepared.operators), experts_of(prepared.operators)
    adapters = adapters_share(model, training, cluster.usable_bytes)
    limits = SpaceLimits(*sizes, only_one, training.compile or not trains, tokens, experts, adapters)
    candidates(limits, parallelism)
    budget, passes = affordable(budget, prepared), optimizer_passes(training)
    split, sequence = uses_tensor_axis(parallelism), parallelism.sequence_parallel
    operators = OperatorProblems(
        prepared, cluster.topology(), training.compile, passes, split, sequence, stored_ratio(training), budget.quick,
        reduced_ratio(training), overlaps=Overlaps.of(parallelism),
    )  # fmt: skip
    evaluator = Evaluator.of(operators, training, budget)
    return SearchState(prepared, cluster, training, limits, operators, evaluator, budget)


def adapters_share(model: Model, training: Training | Inference, usable_bytes: int) -> float:
    """``SpaceLimits.adapters``: gradients, masters and the optimizer's state, over a device's bytes."""
    trained, frozen = (sum(p.type.bytes for p in model.parameters if p.trainable == flag) for flag in (True, False))
    if trained > FEW_TRAINED * frozen:
        return math.inf
    return trained * stored_ratio(training) * (2 + optimizer_states(training)) / usable_bytes


def affordable(budget: SearchBudget, prepared: Prepared) -> SearchBudget:
    """The budget, or a quick one for a model of many operators."""
    return replace(budget, quick=True) if prepared.many > budget.many_operators else budget


def candidates(limits: SpaceLimits, parallelism: Parallelism) -> list[Candidate]:
    """Every candidate that is left; ParallelismError where what is pinned leaves none."""
    check_pinned(limits, parallelism)
    found = list(all_candidates(limits, parallelism))
    if not found:
        raise no_setting(limits, parallelism)
    return found
