"""Plans with an experts' axis of their own, tried for mixtures beside the best plan without one.

A tensor axis splits experts too, within a node and with all else that it splits. An axis of their own may span nodes,
and dense weights stay whole along it. There are as many such meshes again for each of its sizes, and operators over two
axes are dear to choose. So sizes are tried without a tensor axis first, each mesh with the microbatch that gives a
device about as many rows as it has in the best plan. The size that wins is tried with everything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated
from autoplan.search.space.candidates import Candidate, divisors, settings
from autoplan.search.state import SearchState


def over_experts(work: SearchState, pinned: Parallelism, best: Evaluated | None) -> list[Candidate]:
    """Settings with an experts' axis, each mesh with its likeliest microbatch and with no tensor axis unless one is
    pinned; none where such an axis or a system of rows is pinned, or the model has no mixture."""
    said = (pinned.cp, pinned.ep, pinned.tensor, pinned.tensor_system, pinned.sequence_parallel)
    if any(field is not None for field in said) or not work.limits.experts:
        return []
    sizes = [ep for ep in divisors(math.gcd(work.limits.devices, work.limits.experts)) if ep > 1]
    found = (s for ep in sizes for s in settings(work.limits, replace(pinned, ep=ep, tp=pinned.tp or 1)))
    rows = 1.0 if best is None else best.setting.micro_batch / best.setting.operator_ways
    return work.lying(likeliest(found, rows))


def likeliest(possible: Iterable[Candidate], rows: float) -> list[Candidate]:
    """Those of each mesh whose microbatch gives a device about so many rows."""
    by_mesh: dict[tuple, dict[int, list[Candidate]]] = {}
    for s in possible:
        by_mesh.setdefault((s.pp, s.dp, s.operator_sizes), {}).setdefault(s.micro_batch, []).append(s)
    found = []
    for (_, _, sizes), by_rows in by_mesh.items():
        wanted = math.log(max(rows * math.prod(sizes), sizes[0]))
        found += by_rows[min(by_rows, key=lambda size: (abs(math.log(size) - wanted), size))]
    return found


def beside_experts(work: SearchState, pinned: Parallelism, found: Evaluated) -> list[Candidate]:
    """Everything else beside the experts' axis of a plan."""
    return work.lying([s for s in settings(work.limits, replace(pinned, ep=found.setting.ep)) if s not in work.found])
