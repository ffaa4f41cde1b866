"""Plans that keep something in the host's memory, tried where no field at all is pinned, beside any constraints.

They stand beside those on the devices alone, and are taken where they are quicker by ``SearchBudget.host_saves``: less
is recomputed, or microbatches are larger. Where nothing fits on the devices alone a user is told what would
(``remedies``), the host among it: such plans may be many times slower than those of a further node. Under a pipeline,
whose ranks hold a part of the states each, the host is used where it is asked for.
"""

from __future__ import annotations

from autoplan.option_values import OFFLOADS
from autoplan.options import Inference, Parallelism
from autoplan.search.space.candidates import Candidate, all_candidates
from autoplan.search.state import SearchState


def hosted(work: SearchState, pinned: Parallelism) -> list[Candidate]:
    """Every candidate that offloads; none where something is pinned, or devices have no host with memory of its own."""
    host = work.cluster.profile()[0].host
    if pinned.pinned() or isinstance(work.training, Inference) or host is None or host.own:
        return []
    kinds = OFFLOADS if len(work.training.optimizers) == 1 else ("activations",)
    return [s for kind in kinds for s in all_candidates(work.limits, Parallelism(pp=1, offload=kind))]
