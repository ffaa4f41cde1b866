"""Numbers of stages on a rank between those that double, for the best interleaved plans.

Candidates have 2, 4 or 8 stages on each rank, since each is dear to price. Layers may divide otherwise: of 7 layers on
two ranks, six stages are nearly even, and four or eight aren't. So a plan that is a little slower than the best may be
quicker with another number.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated
from autoplan.search.space.candidates import MOST_ACTIONS, VIRTUAL_STAGES, Candidate
from autoplan.search.state import SearchState

NEAR = 1.01  # times the best plan's seconds, up to which other numbers are tried of a plan


def in_other_rounds(work: SearchState, pinned: Parallelism, best: Evaluated) -> list[Candidate]:
    """The candidates of the best plan, and of those near it, with more than half as many stages on a rank, and fewer
    than twice as many; none where their number is pinned, and of plans that aren't interleaved."""
    if pinned.virtual_stages is not None:
        return []
    near = [s for s, found in work.found.items() if found is not None and found.step_s <= NEAR * best.step_s]
    others = dict.fromkeys(o for s in (best.candidate, *sorted(near)) for o in between(s))
    fits = [o for o in others if o not in work.found and o.stages <= work.limits.segments]
    few = [o for o in fits if pinned.pipeline_schedule or 2 * o.stages * o.microbatches <= MOST_ACTIONS]
    return work.lying(few)


def between(s: Candidate) -> list[Candidate]:
    """The same with other numbers of stages on a rank, up to the next that are half or twice as many."""
    if s.schedule != "interleaved":
        return []
    most = min(2 * s.virtual_stages, VIRTUAL_STAGES[-1])
    return [replace(s, virtual_stages=v) for v in range(s.virtual_stages // 2 + 1, most)]
