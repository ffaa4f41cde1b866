"""Why nothing goes on: where each class of ranks stands, whom it waits for, and the circle that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.rehearsal.records import Call
from autoplan.rehearsal.world.rank_equivalence import World, group_of
from autoplan.rehearsal.world.sentences import told


@dataclass(frozen=True)
class Halt:
    """A call that a class has reached and that doesn't end.

    missing  of a collective the classes of members that haven't come
    """

    call: Call
    missing: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Stuck:
    """A rank that doesn't get on: the call that it stands at, and the ranks that it waits for."""

    rank: int
    reason: str
    call: Call
    waits_for: tuple[int, ...]


@dataclass(frozen=True)
class Deadlock:
    """Nothing can go on.

    stuck  the representative of each class that hasn't ended
    cycle  ranks each of which waits for the next one, the last for the first; empty where a rank waits for one that
           has ended
    text   the circle, or the first that waits for what never comes, in a sentence
    """

    stuck: tuple[Stuck, ...]
    cycle: tuple[Stuck, ...]
    text: str


def deadlock_of(world: World, halts: Mapping[int, Halt]) -> Deadlock:
    """halts: by the class's number, of every class that hasn't ended."""
    stuck = tuple(_stuck(world, halts, world.classes[number].first) for number in sorted(halts))
    cycle = next((found for one in stuck if (found := _cycle(world, halts, one.rank))), ())
    if cycle:
        parts = [f"{_stands(world, one)}" for one in cycle]
        return Deadlock(stuck, cycle, "a circle: " + "; ".join(parts))
    ended = [one for one in stuck if any(int(world.class_of[r]) not in halts for r in one.waits_for)]
    one = (ended or stuck)[0]
    gone = next((r for r in one.waits_for if int(world.class_of[r]) not in halts), one.waits_for[0])
    return Deadlock(stuck, (), f"{_stands(world, one)}; {world.named(gone)} has ended without it")


def _stuck(world: World, halts: Mapping[int, Halt], rank: int) -> Stuck:
    number = int(world.class_of[rank])
    halt = halts[number]
    call = halt.call
    if call.kind == "collective":
        waits = tuple(r for r in group_of(rank, call.span).tolist() if int(world.class_of[r]) in halt.missing)
    else:
        waits = (rank + call.peer,)
    return Stuck(rank, world.classes[number].reason, call, waits)


def _cycle(world: World, halts: Mapping[int, Halt], rank: int) -> tuple[Stuck, ...]:
    """Follows the first stuck rank that each one waits for, until one comes again."""
    path: dict[int, Stuck] = {}
    while rank not in path:
        path[rank] = _stuck(world, halts, rank)
        following = [r for r in path[rank].waits_for if int(world.class_of[r]) in halts]
        if not following:
            return ()
        rank = following[0]
    ranks = list(path)
    return tuple(path[r] for r in ranks[ranks.index(rank) :])


def _stands(world: World, one: Stuck) -> str:
    waits = ", ".join(map(str, one.waits_for[:4])) + (", …" if len(one.waits_for) > 4 else "")
    return f"{world.named(one.rank)} stands at {told(one.call, one.rank)} and waits for rank {waits}"
