"""What stands beside the chosen plan: the classical choices and the runners-up, priced by the same function."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism
from autoplan.search.choice import Alternative
from autoplan.search.evaluate import Evaluated
from autoplan.search.result import parallelism_of
from autoplan.search.systems import CLASSICAL, resolve
from autoplan.search.work import Work, candidates

RUNNERS_UP = 5


def alternatives(work: Work, best: Evaluated) -> tuple[Alternative, ...]:
    """The classical choices, then the best of every other mesh that was priced, the fastest first."""
    return (*(classic(work, name, system) for name, system in CLASSICAL), *runners_up(work, best))


def classic(work: Work, name: str, system: str) -> Alternative:
    """A named system: its fastest plan that fits, else how far the leanest is over; or why it doesn't apply."""
    try:
        pinned = resolve(system, work.cluster)
        possible = candidates(work.limits, pinned)
    except ParallelismError as error:
        return Alternative(name, Parallelism(), math.inf, 0, f"{error.value}: {error.cause}")
    wall = work.cluster.usable_bytes
    own = work.pinned_to(pinned)
    found = own.best(possible, wall) or own.leanest(possible, wall)
    return Alternative(name, parallelism_of(found), found.step_s, found.over_bytes(wall))


def runners_up(work: Work, best: Evaluated) -> Iterator[Alternative]:
    """The best plan of each mesh and ZeRO level but the chosen one."""
    fastest: dict[tuple[int, ...], Evaluated] = {}
    for found in work.found.values():
        if found is not None:
            s = found.setting
            kind = (s.pp, s.dp, s.tp, s.zero)
            if kind not in fastest or found.step_s < fastest[kind].step_s:
                fastest[kind] = found
    b = best.setting
    fastest.pop((b.pp, b.dp, b.tp, b.zero), None)
    for found in sorted(fastest.values(), key=lambda e: e.step_s)[:RUNNERS_UP]:
        s = found.setting
        name = f"dp={s.dp} tp={s.tp} pp={s.pp} zero={s.zero}"
        yield Alternative(name, parallelism_of(found), found.step_s, 0)
