"""Numbers of stages on a rank between and beyond those that double, for the best interleaved plans.

Candidates have 2, 4 or 8 stages on each rank, and fewer where a pipeline is seldom idle, since each is dear to price.
Layers may divide otherwise: of 7 layers on two ranks, six stages are nearly even, and four or eight aren't. So a plan
that is a little slower than the best may be quicker with another number. What is found is a start for further numbers.

All have the operators of the plan that they vary: what is best for a number of stages nearly is for another. With these
a glance tells which are good: of the quickest glances a few are searched.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated
from autoplan.search.space.candidates import MOST_ACTIONS, Candidate, divisors
from autoplan.search.state import SearchState

NEAR = 1.01  # times the best plan's seconds, up to which other numbers are tried of a plan
HAIR = 1.005  # and those within which either of two plans may be the quicker, so that neither search was long enough
GIVEN_UP = 1.15  # and those up to which a search that was given up may have been on the way to a quicker plan
RIVALS = 1  # of these that are searched again
EVEN = 1.08  # and those by which the layers divide, whose stages needn't be searched to be good


def other_virtual_stages(work: SearchState, pinned: Parallelism, best: Evaluated) -> dict[Candidate, Evaluated]:
    """Each with the plan that it varies: the candidates of the best plan, and of those near it, with more than half as
    many stages on a rank, and up to twice as many; of others not far from it with those by which the layers divide.
    None where their number is pinned, and of plans that aren't interleaved."""
    if pinned.virtual_stages is not None:
        return {}
    priced = {s: found for s, found in work.found.items() if found and s.schedule == "interleaved"}
    quickest = sorted(priced, key=lambda s: (priced[s].step_s, s))
    near, further = ([s for s in quickest if priced[s].step_s <= times * best.step_s] for times in (NEAR, EVEN))
    layers = work.operators.sizes.repeated
    others = {o: s for s in reversed(further) for o in evenly(s, layers)}
    others |= {o: s for s in reversed(near) for o in between(s)}
    fits = [o for o in others if o not in work.searched and o.stages <= work.limits.segments]
    few = [o for o in fits if pinned.pipeline_schedule or 2 * o.stages * o.microbatches <= MOST_ACTIONS]
    return {o: priced[others[o]] for o in work.feasible(few)}


def within_a_hair(work: SearchState, best: Evaluated) -> list[Candidate]:
    """Interleaved candidates that came nearest to the best plan, or could become as quick by their bounds, to be
    searched with no limit on their time: under the best plan's, a search is given up whose even stages take far longer,
    or whose first steps gain little. Of these the one whose bound and seconds so far have the least mean."""
    priced = {s: found.step_s for s, found in work.found.items() if found and s.schedule == "interleaved"}
    priced.pop(best.candidate, None)
    near = [s for own, s in sorted((own, s) for s, own in priced.items()) if own <= HAIR * best.step_s][:RIVALS]
    least_s = HAIR * work.unlimited_s(best.candidate)
    bounds_s = {s: work.unlimited_s(s) for s, own in priced.items() if own <= GIVEN_UP * best.step_s}
    given_up = sorted((bound_s + priced[s], s) for s, bound_s in bounds_s.items() if bound_s <= least_s)
    return near or [s for _, s in given_up][:RIVALS]


def between(s: Candidate) -> list[Candidate]:
    """The same with other numbers of stages on a rank, from above half as many to twice as many."""
    return [replace(s, virtual_stages=v) for v in range(s.virtual_stages // 2 + 1, 2 * s.virtual_stages + 1)]


def evenly(s: Candidate, layers: int) -> list[Candidate]:
    """The same with each number of stages on a rank by which so many layers divide."""
    return [replace(s, virtual_stages=v) for v in divisors(layers // s.pp) if v > 1] if layers % s.pp == 0 else []
