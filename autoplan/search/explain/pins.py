"""What a pin costs: the plan that would be taken if nothing were pinned, found by the same search.

Where blocks have many operators, that search would take longer than the one for the plan itself. Then a quick one
stands in for it. What it finds is a real plan, so that the pin costs at least so much.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.options import Parallelism
from autoplan.search.bounds.floors import lower_bound
from autoplan.search.driver import best_plan, fastest
from autoplan.search.evaluate import Evaluated
from autoplan.search.further.host_memory import hosted
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState, begin, candidates

UNPINNED = "nothing pinned"
"""The alternative that the price of a pin is read from."""

UNPINNED_QUICKLY = "nothing pinned, by a quick search"
"""The same where a quick search found it."""

PRICES_OF_PINS = (UNPINNED, UNPINNED_QUICKLY)


def unpinned(work: SearchState, best: Evaluated, pinned: Parallelism) -> tuple[str, SearchState, Evaluated] | None:
    """The fastest plan with neither pinned fields nor constraints: the alternative's name, the search that it is of,
    and the plan, ``best`` itself where the pins cost nothing. None where nothing is pinned.

    Only candidates whose bound is below what the pinned plan takes are priced: no other can be quicker.
    """
    constraints = work.prepared.constraints
    if not pinned.pinned() and not constraints:
        return None
    free = Parallelism()
    own = begin(work.prepared.model, work.cluster, work.training, free) if constraints else work.pinned_to(free)
    if work.prepared.many > work.budget.pin_operators:
        own = own.quickly()
        quick = best_plan(own, free)
        is_faster = quick is not None and quick.step_s < best.step_s
        return (UNPINNED_QUICKLY, own, quick) if quick and is_faster else (UNPINNED_QUICKLY, work, best)
    memory_limit = work.cluster.aimed_bytes

    def quicker(possible: Sequence[Candidate]) -> list[Candidate]:
        return [s for s in own.feasible(possible) if lower_bound(own.operators, s) < best.step_s]

    found = fastest(own, quicker(candidates(own.limits, free)), memory_limit)
    found = found if found is not None and found.step_s < best.step_s else best
    found = fastest(own, quicker(hosted(own, free)), memory_limit, found, own.budget.host_saves) or found
    return (UNPINNED, work, best) if found is best else (UNPINNED, own, found)
