"""What stands beside the chosen plan: the classical choices and the runners-up, priced by the same function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism
from autoplan.search.choice import Alternative, PricedCollective
from autoplan.search.evaluate import Evaluated
from autoplan.search.predict import collectives
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
    return priced(work, name, found, found.over_bytes(wall))


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
        yield priced(work, name, found, 0)


def priced(work: Work, name: str, found: Evaluated, over_bytes: int) -> Alternative:
    """A plan as an alternative, with what it waits for."""
    summed: dict[tuple[str, str, str], PricedCollective] = {}
    for one in collectives(found, work.prepared.model):
        key = (one.where.removesuffix(" (backward)").split(" ")[0], one.kind, one.axis)
        before = summed.get(key)
        summed[key] = one if before is None else together(before, one)
    longest = max(summed.values(), key=in_the_open, default=None)
    waits = longest if longest is not None and in_the_open(longest) > 0 else None
    idle_s = found.timeline.bubble_fraction * found.step_s
    return Alternative(name, parallelism_of(found), found.step_s, over_bytes, "", waits, idle_s)


def in_the_open(collective: PricedCollective) -> float:
    """Seconds that no compute hides."""
    return collective.seconds - collective.hidden_s


def together(one: PricedCollective, other: PricedCollective) -> PricedCollective:
    """Collectives of one kind in one block, which the report tells as one: under the block's name."""
    block = one.where.split(" ")[0]
    return replace(
        one,
        where=block,
        bytes=max(one.bytes, other.bytes),
        count=one.count + other.count,
        seconds=one.seconds + other.seconds,
        hidden_s=one.hidden_s + other.hidden_s,
    )
