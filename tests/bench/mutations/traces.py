"""Faults in the calls of one rank of a rehearsed plan, or of all ranks of a stage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoplan.rehearsal.pricing.price_check import balance
from autoplan.rehearsal.records import Call, RankClass, RankTrace
from autoplan.rehearsal.world.matching import mismatches
from autoplan.rehearsal.world.rank_equivalence import refine
from tests.bench.mutations.worlds import Rehearsed
from tests.support.mutations import FAULTS, Calls
from tests.support.rehearsed import renumbered

SHAPE = "stage of another shape"
KINDS = (*FAULTS, SHAPE)


@dataclass(frozen=True)
class Mutation:
    """A fault, and what a rehearsal says of it.

    ranks   that have it
    lines   any of which tells where
    told    what names one of these ranks and lines; "": nothing does
    """

    plan: str
    kind: str
    ranks: tuple[int, ...]
    lines: frozenset[str]
    told: str


class NoPlace(Exception):
    """A rank without a call of the kind."""


def mutations(world: Rehearsed, count: int, seed: int) -> Iterator[Mutation]:
    """So many faults, each kind in turn where the plan has a place for it; AssertionError where it has for none."""
    chance, kinds = random.Random(seed), list(KINDS)
    while count:
        assert kinds, f"{world.name} has no place for a fault"
        for kind in list(kinds):
            try:
                found = mutated(world, kind, chance)
            except NoPlace:
                kinds.remove(kind)
                continue
            yield found
            count -= 1
            if not count:
                return


def mutated(world: Rehearsed, kind: str, chance: random.Random) -> Mutation:
    """One fault of a kind, at a rank and place by chance."""

    def pick(where: list[int]) -> int:
        if not where:
            raise NoPlace
        return chance.choice(where)

    number = chance.randrange(len(world.classes))
    calls, own = list(world.traces[number].calls), world.classes[number].ranks
    if kind == SHAPE:
        if len({trace.stages for trace in world.traces}) == 1:
            raise NoPlace
        changed, at, ranks = other_shape(calls), first_message(calls), own
    else:
        spans = sorted({call.span for trace in world.traces for call in trace.calls if call.span})
        changed, at = FAULTS[kind](spans, calls, pick)
        ranks = (chance.choice(own),)
    lines = {calls[number].line for number in at.of} if at.kind == "wait" else {at.line}
    if kind == SHAPE:
        lines = {call.line for call in calls if call.kind in ("send", "receive")}
    peers = {call.line for trace in world.traces for call in trace.calls if call.kind in ("send", "receive")}
    if at.kind in ("send", "receive") and lonely(world, ranks):
        lines |= peers  # no like rank tells where the dropped one stood: the other side's is named
    return Mutation(world.name, kind, ranks, frozenset(lines), told(world, number, ranks, renumbered(changed), lines))


def lonely(world: Rehearsed, ranks: tuple[int, ...]) -> bool:
    """Whether no other rank has their stages."""
    stages = {r: trace.stages for one, trace in zip(world.classes, world.traces, strict=True) for r in one.ranks}
    return not [r for r in stages if r not in ranks and stages[r] == stages[ranks[0]]]


def first_message(calls: Calls) -> Call:
    return next(call for call in calls if call.kind in ("send", "receive"))


def other_shape(calls: Calls) -> Calls:
    """All that a stage sends is twice as large."""
    if not any(call.kind == "send" for call in calls):
        raise NoPlace
    return [replace(c, bytes=2 * c.bytes) if c.kind == "send" else c for c in calls]


def told(world: Rehearsed, number: int, ranks: tuple[int, ...], calls: Calls, lines: set[str]) -> str:
    """What names one of the ranks, or their class, and one of the lines; else "".

    number  of the class whose ranks these are
    """
    trace = replace(world.traces[number], rank=ranks[0], calls=tuple(calls))
    classes, traces = apart(world, number, ranks, trace)
    for one in mismatches(refine(world.devices, classes, traces)):
        named = {one.line, *(call.line for _, call in one.calls)}
        concerned = {*one.ranks, *(rank for rank, _ in one.calls)}
        if concerned & set(ranks) and named & lines:
            return one.text
    if len(ranks) == len(world.classes[number].ranks):  # all of a class: the account of its prices tells, too
        return next((str(d) for d in balance(world.prices, trace).differences if any(x in d.where for x in lines)), "")
    return ""


def apart(
    world: Rehearsed, number: int, ranks: tuple[int, ...], trace: RankTrace
) -> tuple[list[RankClass], list[RankTrace]]:
    """The classes with these ranks in one of their own."""
    classes, traces = list(world.classes), list(world.traces)
    rest = tuple(rank for rank in classes[number].ranks if rank not in ranks)
    if not rest:
        traces[number] = trace
        return classes, traces
    classes[number], traces[number] = replace(classes[number], ranks=rest), replace(traces[number], rank=rest[0])
    return [*classes, RankClass(ranks, "changed")], [*traces, trace]


def false_alarms(world: Rehearsed) -> list[str]:
    """What is told of a plan as it is."""
    found = mismatches(refine(world.devices, world.classes, world.traces))
    differences = [str(d) for trace in world.traces for d in balance(world.prices, trace).differences]
    return [*(one.text for one in found), *differences]
