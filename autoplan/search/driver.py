"""The search: candidates sorted by a lower bound on their step time, priced until none can beat the best.

A closed-form bound discards most candidates before they are evaluated. The others are bounded again, by their
operators and by what devices can hold, and evaluated in the order of their bounds.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoplan.cost.interleaved import is_interleaved
from autoplan.options import Parallelism
from autoplan.search.bounds.floors import lower_bound
from autoplan.search.evaluate import Evaluated, Evaluator
from autoplan.search.further.axes import (
    LONG,
    beside_experts,
    beside_tensor,
    in_context,
    over_experts,
    over_rows,
    wants_context,
)
from autoplan.search.further.factoring import beside_whole_weights, refined
from autoplan.search.further.host_memory import hosted
from autoplan.search.further.virtual_stages import other_virtual_stages, within_a_hair
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState, candidates

FLOOR, UNLIMITED, LIMITED = range(3)
"""How tight a bound is: in closed form, by the fastest operators, and under the memory limit."""


def best_plan(work: SearchState, parallelism: Parallelism) -> Evaluated | None:
    """The fastest plan that leaves the cluster's margin of memory; None where nothing fits on the devices alone.

    Where a few candidates leave no margin the leanest plans are looked at: if they don't, either, none does. Then it is
    the fastest of these in no more memory than the leanest needs: so a larger limit, under which some plan leaves the
    margin, is never slower.
    """
    given = candidates(work.limits, parallelism)
    aimed, usable = work.cluster.aimed_bytes, work.cluster.usable_bytes
    memory_limit, tries = aimed, work.budget.last_resorts if usable > aimed else None
    best = on_any_axes(work, given, parallelism, aimed, tries=tries)
    least = least_plan(work, given) if best is None else None
    if least is not None and least.over_bytes(aimed) > 0:
        memory_limit = min(usable, math.ceil(least.over_bytes(0.0)))
        best = last_resort(work, given, memory_limit)
    elif best is None:
        best = last_resort(work, given, aimed)
        best = best and on_any_axes(work, given, parallelism, aimed, best)
    if best is None and usable > memory_limit:
        memory_limit = usable
        best = on_any_axes(work, given, parallelism, usable) or last_resort(work, given, usable)
    if best is None:
        work.check_any_feasible(given)
        return None
    return improved(work, best, parallelism, memory_limit)


def on_any_axes(
    work: SearchState, given: Sequence[Candidate], parallelism: Parallelism, memory_limit: float,
    best: Evaluated | None = None, tries: int | None = None,
) -> Evaluated | None:  # fmt: skip
    """The fastest plan under a memory limit, with axes of their own for context and experts beside it; ``best`` where
    none is quicker, None where none is found. ``tries`` as of ``best_first``."""
    best = cheap_first(work, given, parallelism, memory_limit, best, tries)
    best = fastest(work, given, memory_limit, best, tries=tries) or best
    if wants_context(work, best):
        best = fastest(work, in_context(work, parallelism), memory_limit, best, tries=tries) or best
    best = fastest(work, over_experts(work, parallelism, best), memory_limit, best, tries=tries) or best
    best = fastest(work, beside_tensor(work, parallelism, best), memory_limit, best, tries=tries) or best
    best = fastest(work, over_rows(work, parallelism, best), memory_limit, best, tries=tries) or best
    if best is not None and best.candidate.folding.axes and parallelism.ep is None:
        best = fastest(work, beside_experts(work, parallelism, best), memory_limit, best) or best
    return best


def cheap_first(
    work: SearchState, given: Sequence[Candidate], parallelism: Parallelism, memory_limit: float,
    best: Evaluated | None, tries: int | None,
) -> Evaluated | None:  # fmt: skip
    """The same where axes of their own are tried in any case, of those candidates alone that are cheap to evaluate.
    Their best limits the others: without an axis that a model needs these are searched under a limit far too high."""
    if work.budget.quick or not (work.limits.experts or work.limits.tokens >= LONG):
        return best
    best = fastest(work, cheap(given), memory_limit, best, tries=tries) or best
    if work.limits.tokens >= LONG:
        best = fastest(work, cheap(in_context(work, parallelism)), memory_limit, best, tries=tries) or best
    return fastest(work, cheap(over_experts(work, parallelism, best)), memory_limit, best, tries=tries) or best


def cheap(possible: Sequence[Candidate]) -> list[Candidate]:
    return [s for s in possible if not is_dear(s)]


def improved(work: SearchState, best: Evaluated, parallelism: Parallelism, memory_limit: float) -> Evaluated:
    """A plan with other numbers of stages, with the host's memory, its operators and what is split refined."""
    best = with_best_virtual_stages(work, parallelism, best, memory_limit)
    best = fastest(work, hosted(work, parallelism), memory_limit, best, work.budget.host_saves) or best
    if work.budget.quick:
        return beside_whole_weights(work, solved_anew(work, best, memory_limit), parallelism, memory_limit)
    return refined(work, best, parallelism, memory_limit)


def with_best_virtual_stages(work: SearchState, pinned: Parallelism, best: Evaluated, memory_limit: float) -> Evaluated:
    """The best plan with the number of stages on a rank that is quickest, sought for as long as others are quicker."""
    others = other_virtual_stages(work, pinned, best)
    fitting = [s for s in others if work.least_bytes(s) <= memory_limit]
    points = {s: plan.point for s, plan in others.items()}
    found = best_first(work, fitting, memory_limit, best, best.step_s, points=points) or best
    if found is best:
        rivals = () if work.budget.quick else within_a_hair(work, best)
        return min([best, *filter(None, (work.evaluate(s, memory_limit) for s in rivals))], key=lambda e: e.step_s)
    return with_best_virtual_stages(work, pinned, found, memory_limit)


def fastest(
    work: SearchState,
    possible: Sequence[Candidate],
    memory_limit: float,
    best: Evaluated | None = None,
    saves: float = 0.0,
    tries: int | None = None,
) -> Evaluated | None:
    """The fastest plan of these candidates, or ``best`` where none saves more than a share of it, ``saves``. A quick
    search tries a few sizes of microbatches of each mesh, and more where bytes are short. ``tries`` as of
    ``best_first``."""
    fitting = [s for s in possible if work.least_bytes(s) <= memory_limit]
    work.bounds |= dict.fromkeys(set(possible).difference(fitting), math.inf)  # the others are bounded below
    under_s = math.inf if best is None else best.step_s * (1 - saves)
    sizes = work.budget.micro_batches
    if sizes is None:
        return in_two_steps(work, fitting, memory_limit, best, under_s, tries)
    if len(work.feasible(tried := subsample(fitting, sizes[0]))) < len(tried):
        fitting = work.feasible(fitting)
    found = best_first(work, subsample(fitting, sizes[0]), memory_limit, best, under_s, tries)
    short = found is None or found.recomputes or found.candidate.offload != "none"
    return best_first(work, subsample(fitting, sizes[1]), memory_limit, found, under_s, tries) if short else found


def best_first(
    work: SearchState, possible: Sequence[Candidate], memory_limit: float, best: Evaluated | None, under_s: float,
    tries: int | None = None, points: Mapping[Candidate, IntraOpPlan] | None = None,
) -> Evaluated | None:  # fmt: skip
    """The fastest plan of these candidates that takes less than ``under_s``, or ``best``; None, too, once so many
    ``tries`` have found nothing at all. With ``points`` candidates have these operators, and only the few of the
    quickest glances are searched.

    The candidate with the least bound comes next. Its bound is tightened first, by its operators and then by what ranks
    hold; if it still comes next, it is evaluated. Those that are dear to evaluate wait for the others, and most are
    then given up. A glance at the first gives a plan of each, whose time limits all others: at once for as long as
    that helps, then when all others are done.
    """
    tight = FLOOR if not work.budget.quick else LIMITED
    queue = [(lower_bound(work.operators, s), s, tight) for s in work.feasible(possible)]
    work.bounds |= {candidate: bound_s for bound_s, candidate, _ in queue}
    heapq.heapify(queue)
    searched = work.budget.searched if points is None or work.budget.quick else work.budget.searched_again
    waiting, tried = Waiting(work, memory_limit, under_s, points or {}, searched), 0
    while queue:
        bound_s, candidate, tight = heapq.heappop(queue)
        limit_s = waiting.limit_s(best)
        if bound_s >= limit_s:
            break
        if tries is not None and best is None and waiting.best is None and tried + waiting.glances >= tries:
            return None
        if tight < LIMITED:
            if tight == FLOOR:
                tighter_s = work.unlimited_s(candidate)
            else:
                tighter_s = work.limited_s(candidate, memory_limit, limit_s)
            work.bounds[candidate] = max(bound_s, tighter_s)
            heapq.heappush(queue, (work.bounds[candidate], candidate, tight + 1))
        elif is_dear(candidate):
            waiting.add(candidate, limit_s)
        else:
            best, tried = quicker(under_s, best, work.evaluate(candidate, memory_limit, limit_s)), tried + 1
    left = searched or len(waiting.glances_s)
    for candidate in waiting.in_order(best):
        limit_s = waiting.limit_s(best)
        if left and work.bounds[candidate] < limit_s:
            found = work.evaluate(candidate, memory_limit, limit_s, waiting.points.get(candidate))
            best, left = quicker(under_s, best, found), left - (found is not None)
    return quicker(under_s, best, waiting.best)


@dataclass
class Waiting:
    """Candidates that are dear to evaluate, in the order of their bounds, with what they take at a glance.

    glances_s  seconds, infinite where nothing is known
    best       the quickest at a glance
    glances    so far; of these ``vain`` in a row, and the last, gave nothing quicker
    """

    work: SearchState
    memory_limit: float
    under_s: float
    points: Mapping[Candidate, IntraOpPlan]
    searched: int | None
    glances_s: dict[Candidate, float] = field(default_factory=dict)
    best: Evaluated | None = None
    glances: int = 0
    vain: int = 0

    def limit_s(self, best: Evaluated | None) -> float:
        """Seconds below which another plan is worth a look, beside the best that was evaluated."""
        return worth_s(self.work, self.under_s, best, self.best)

    def add(self, candidate: Candidate, limit_s: float) -> None:
        self.glances_s[candidate] = math.inf
        if self.vain < self.work.budget.vain_glances:
            self.glance(candidate, limit_s)

    def glance(self, candidate: Candidate, limit_s: float) -> None:
        if self.glances < self.work.budget.glances:
            self.glances += 1
            found = self.work.glance(candidate, self.memory_limit, limit_s, self.points.get(candidate))
            before, self.best = self.best, quicker(self.under_s, self.best, found)
            self.vain = 0 if self.best is not before else self.vain + 1
            if found is not None:
                self.glances_s[candidate] = found.step_s

    def in_order(self, best: Evaluated | None) -> list[Candidate]:
        """In the order of their bounds, after a glance at those that had none. Of one that is searched on its own only
        those of the quickest glances first: under a limit that one of them sets, the search of another whose glance
        is slow would be given up before it comes near."""
        for candidate in list(self.glances_s)[self.glances :]:
            if self.work.bounds[candidate] < self.limit_s(best):
                self.glance(candidate, self.limit_s(best))
        if self.searched is None:
            return list(self.glances_s)
        return sorted(self.glances_s, key=self.glances_s.__getitem__)


def worth_s(work: SearchState, under_s: float, *known: Evaluated | None) -> float:
    """Seconds below which another plan is worth a look."""
    return min([under_s, *(plan.step_s * (1 - work.budget.tolerance) for plan in known if plan is not None)])


def quicker(under_s: float, best: Evaluated | None, found: Evaluated | None) -> Evaluated | None:
    """``found`` where it takes less than the limit and than ``best``."""
    if found is None or found.step_s >= min(under_s, math.inf if best is None else best.step_s):
        return best
    return found


def in_two_steps(
    work: SearchState, possible: Sequence[Candidate], memory_limit: float, best: Evaluated | None, under_s: float,
    tries: int | None = None,
) -> Evaluated | None:  # fmt: skip
    """The same, of sizes of microbatches that at least double; then of those between the neighbours of the best one's
    size. A batch of 15,360 rows has many that differ by a quarter; one of a power of two has none between."""
    first = doubling(possible)
    found = best_first(work, first, memory_limit, best, under_s, tries)
    if found is None and tries is not None:
        return None
    others = sorted(set(possible).difference(first))
    if found is not None:
        rows = found.candidate.micro_batch
        others = [s for s in others if rows < 2 * s.micro_batch < 4 * rows]
    return best_first(work, others, memory_limit, found, under_s, tries) if others else found


def doubling(possible: Sequence[Candidate]) -> list[Candidate]:
    """Those of each mesh whose microbatch is the smallest, or at least twice the one before."""
    rows: dict[tuple, list[int]] = {}
    for mesh, size in sorted({((s.pp, s.dp, s.operator_sizes), s.micro_batch) for s in possible}):
        if mesh not in rows or size >= 2 * rows[mesh][-1]:
            rows.setdefault(mesh, []).append(size)
    return [s for s in possible if s.micro_batch in rows[s.pp, s.dp, s.operator_sizes]]


def is_dear(candidate: Candidate) -> bool:
    """Whether pricing a candidate takes seconds: the stages of an interleaved schedule are searched."""
    return is_interleaved(candidate.schedule)


def subsample(possible: Sequence[Candidate], most: int) -> list[Candidate]:
    """Those with so many of the smallest microbatches of each mesh, and with the largest: of long sequences larger ones
    gain little and need more memory; of vectors and short sequences small ones leave a device idle."""
    rows: dict[tuple, set[int]] = {}
    for s in possible:
        rows.setdefault((s.pp, s.dp, s.operator_sizes), set()).add(s.micro_batch)
    tried = {mesh: {*sorted(sizes)[:most], max(sizes)} for mesh, sizes in rows.items()}
    return [s for s in possible if s.micro_batch in tried[s.pp, s.dp, s.operator_sizes]]


def last_resort(work: SearchState, possible: Sequence[Candidate], memory_limit: float) -> Evaluated | None:
    """Where nothing was found to fit: of the candidates that hold least, the fastest plan of the operators that do, if
    any fits."""
    sized = sorted((work.least_bytes(s), s) for s in possible)
    feasible = ((least, s) for least, s in sized if work.infeasibility(s) is None)
    best: Evaluated | None = None
    for least, candidate in itertools.islice(feasible, work.budget.last_resorts):
        lean = work.leanest_of(candidate) if least <= memory_limit else None
        if lean is None or work.evaluator.idle(candidate, lean.point):
            continue
        found = work.evaluator.with_point(candidate, lean.point, memory_limit) or lean
        if found.over_bytes(memory_limit) == 0 and not found.exceeds_host:
            work.found[candidate] = found
            best = found if best is None or found.step_s < best.step_s else best
    return best


def least_plan(work: SearchState, possible: Iterable[Candidate]) -> Evaluated | None:
    """The plan that needs least of its fullest device: candidates by a bound, until none can need less. None where none
    runs whatever the memory."""
    best: Evaluated | None = None
    tried = 0
    for least, candidate in sorted((work.least_bytes(s), s) for s in possible):
        if best is not None and (tried == work.budget.last_resorts or least >= best.over_bytes(0.0)):
            break
        found = work.leanest_of(candidate) if work.infeasibility(candidate) is None else None
        if found is None:
            continue
        tried += 1
        if best is None or found.over_bytes(0.0) < best.over_bytes(0.0):
            best = found
    return best


def solved_anew(work: SearchState, best: Evaluated, memory_limit: float) -> Evaluated:
    """A quick best, and what came near it on other meshes, with operators of their own where those are faster."""
    priced = [found for found in work.found.values() if found and found.step_s <= work.budget.near * best.step_s]
    nearest: dict[tuple[int, ...], Evaluated] = {}
    for found in [best, *sorted(priced, key=lambda e: e.step_s)]:
        nearest.setdefault((found.candidate.pp, found.candidate.dp, *found.candidate.operator_sizes), found)
    for near in list(nearest.values())[: work.budget.near_meshes]:
        own = Evaluator.of(work.operators.solved_anew(near.candidate), work.training)
        anew = own.evaluate(near.candidate, memory_limit)
        best = min((e for e in (best, anew) if e is not None), key=lambda e: e.step_s)
    return best
