"""How long the step of the whole world takes, and what each class does meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoplan.rehearsal.world.deadlock import Deadlock, deadlock_of
from autoplan.rehearsal.world.rank_equivalence import World
from autoplan.rehearsal.world.script import Pricing, script_of
from autoplan.rehearsal.world.simulation import SimulatedRank, Simulation

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class ClassTimes:
    """One class's step.

    busy         seconds in which an operator runs
    exposed      in which none does, but a collective, a message or a copy
    idle         of the step, in which nothing does
    start, end   of every call of the trace; of a wait when it begins to and when it goes on
    """

    rank: int
    reason: str
    busy: float
    exposed: float
    idle: float
    start: Seconds = field(repr=False)
    end: Seconds = field(repr=False)


@dataclass(frozen=True)
class Timeline:
    """A step that completes: its seconds, and those of each class of the world."""

    seconds: float
    classes: tuple[ClassTimes, ...]


def simulate(world: World, seconds: Pricing, eager_bytes: int | None = None) -> Timeline | Deadlock:
    """All classes' calls until the last one ends, or nothing can go on.

    seconds      of each operator, copy, collective and message; 0 of the rest
    eager_bytes  a send of at most so many bytes ends by itself; None: every send ends with its receive
    """
    traces = {one.initial: one.trace for one in world.classes}
    scripts = {number: script_of(trace, seconds) for number, trace in traces.items()}
    simulation = Simulation(world, scripts, -1 if eager_bytes is None else eager_bytes)
    simulation.run()
    halts = simulation.halts()
    if halts:
        return deadlock_of(world, halts)
    ended = max((rank.last for rank in simulation.ranks), default=0.0)
    return Timeline(ended, tuple(_times(rank, ended) for rank in simulation.ranks))


def _times(rank: SimulatedRank, ended: float) -> ClassTimes:
    script, calls = rank.script, rank.script.trace.calls
    run, price = np.array(script.run_of, dtype=np.int64), np.array(script.seconds)
    start, end = np.array(rank.start[: len(calls)]), np.array(rank.end[: len(calls)])
    within = run >= 0
    start[within] = np.array(rank.runs)[run[within]] + np.array(script.within)[within]
    end[within] = start[within] + price[within]
    kinds = np.array([call.kind for call in calls])
    works = kinds == "operator"
    moves = np.isin(kinds, ("collective", "send", "receive", "copy"))
    busy, used = covered(start[works], end[works]), covered(start[works | moves], end[works | moves])
    return ClassTimes(rank.one.first, rank.one.reason, busy, used - busy, ended - used, start, end)


def covered(start: Seconds, end: Seconds) -> float:
    """Seconds that lie in at least one of the intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end) if end.size else end
    before = np.concatenate(([-np.inf], reach[:-1])) if end.size else end
    return float(np.maximum(reach - np.maximum(start, before), 0.0).sum())
