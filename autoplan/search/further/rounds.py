"""Numbers of stages on a rank between those that double, for the best interleaved plan.

Candidates have 2, 4 or 8 stages on each rank, since each is dear to price. Layers may divide otherwise: of 7 layers on
two ranks, six stages are nearly even, and four or eight aren't.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated
from autoplan.search.space.candidates import MOST_ACTIONS, VIRTUAL_STAGES, Candidate
from autoplan.search.state import SearchState


def in_other_rounds(work: SearchState, pinned: Parallelism, best: Evaluated) -> list[Candidate]:
    """The best plan's candidate with more than half as many stages on a rank, and fewer than twice as many; none where
    their number is pinned, or it isn't interleaved."""
    s = best.candidate
    if s.schedule != "interleaved" or pinned.virtual_stages is not None:
        return []
    most = min(2 * s.virtual_stages, VIRTUAL_STAGES[-1])
    others = [replace(s, virtual_stages=v) for v in range(s.virtual_stages // 2 + 1, most)]
    fits = [o for o in others if o != s and o.stages <= work.limits.segments]
    few = [o for o in fits if pinned.pipeline_schedule or 2 * o.stages * o.microbatches <= MOST_ACTIONS]
    return work.lying(few)
