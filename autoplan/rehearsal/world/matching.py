"""Does everything meet? Members' collectives in the same order, every send its receive, every wait what it waits for.

Of each communicator the members' sequences are compared, and of each pair of ranks the sends with the receives. Where
they differ, the rank is named that deviates from most members; in a tie, from the ranks elsewhere that do the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplan.rehearsal.records import Call, RankTrace
from autoplan.rehearsal.world.alignment import Difference, common_prefix, first_difference, reordered
from autoplan.rehearsal.world.channels import Channel, Sequences, needed, recognised
from autoplan.rehearsal.world.rank_equivalence import MEETING, MESSAGES, Ranks, World, group_of
from autoplan.rehearsal.world.sentences import described, listed, ordinal, placed, told

Numbers = tuple[dict[Channel, int], ...]


@dataclass(frozen=True)
class Mismatch:
    """Calls that don't meet.

    ranks  the representative of the class that deviates from the others; and of the other side where neither has a
           majority
    line   of the call that is changed, is one too many, is left out or isn't waited for
    calls  (rank, call) of each side at that place, the deviating rank's first; of what is left out the other side's
           alone, where the rank issues no more
    text   what differs, in one sentence
    """

    ranks: tuple[int, ...]
    line: str
    calls: tuple[tuple[int, Call], ...]
    text: str


def mismatches(world: World) -> tuple[Mismatch, ...]:
    """All of them, those of ranks alone first; none where every call meets."""
    traces = {one.initial: one.trace for one in world.classes}
    sequences = Sequences.of([traces[number] for number in sorted(traces)])
    first = {one.initial: one.first for one in reversed(world.classes)}
    waits = [m for number in sorted(traces) for m in _waits(world, first[number], traces[number])]
    found: dict[tuple[object, ...], Mismatch] = {}
    for one in (*_collectives(world, sequences), *_messages(world, sequences)):
        # classes that others have split lack the same calls: one of them stands for all
        initials = (world.classes[world.class_of[rank]].initial for rank in one.ranks)
        found.setdefault((*initials, one.line, *(call for _, call in one.calls)), one)
    return (*waits, *found.values())


def _waits(world: World, rank: int, trace: RankTrace) -> Iterator[Mismatch]:
    """A wait for what wasn't started, and what is started and not waited for before the step ends, once a line."""
    started: dict[int, Call] = {}
    waited: set[int] = set()
    for call in trace.calls:
        if call.kind in MEETING:
            started[call.number] = call
        elif call.kind == "wait":
            for number in call.of:
                if number not in started:
                    text = f"{world.named(rank)} waits at {call.line} for call {number}, which isn't one in flight"
                    yield Mismatch((rank,), call.line, ((rank, call),), text)
            waited.update(call.of)
    left: dict[tuple[str, str], list[Call]] = {}
    for number, call in started.items():
        if number not in waited:
            left.setdefault((call.kind, call.line), []).append(call)
    for calls in left.values():
        often = "" if len(calls) == 1 else f", nor for {len(calls) - 1} more of that line"
        text = f"{world.named(rank)} never waits for its {described(calls[0], rank)} at {placed(calls[0])}{often}"
        yield Mismatch((rank,), calls[0].line, ((rank, calls[0]),), text)


def _collectives(world: World, sequences: Sequences) -> Iterator[Mismatch]:
    compared = set()
    for one in world.classes:
        for channel in (c for c in sequences.calls[one.initial] if c.kind == "collective"):
            members = dict(one.members[channel.span])
            known = (channel, frozenset(members))
            if known not in compared:
                compared.add(known)
                yield from _communicator(world, sequences, channel, members, group_of(one.first, channel.span))


def _communicator(
    world: World, sequences: Sequences, channel: Channel, members: dict[int, int], group: Ranks
) -> Iterator[Mismatch]:  # fmt: skip
    """Every class of members against the usual one, that issues what most do, and most of these by their lines."""
    alike, sure = _most(world, sequences.kinds, channel, members)
    usual_members, surely = _most(world, sequences.orders, channel, alike)
    usual = next(iter(usual_members))
    initials = {world.classes[number].initial: number for number in reversed(list(members))}
    for number in sorted(initials.values()):
        mine, theirs = (sequences.calls[world.classes[n].initial].get(channel, []) for n in (number, usual))
        if number not in alike:
            found, clear = first_difference(mine, theirs, needed, recognised), sure
        elif number not in usual_members:
            found, clear = reordered(mine, theirs, recognised), surely
        else:
            continue
        if found:
            # a class without calls on the channel isn't split by it: only some of its ranks may be in such a group
            own = group_of(world.classes[number].first, channel.span) if mine else group
            rank, other = (int(own[world.class_of[own] == n][0]) for n in (number, usual))
            yield _told_apart(world, found, rank, other, mine, theirs, clear, f" among ranks {listed(own.tolist())}")


def _most(
    world: World, numbers: Numbers, channel: Channel, members: Mapping[int, int]
) -> tuple[dict[int, int], bool]:  # fmt: skip
    """The members with the commonest sequence: among them, in a tie in the world; and whether no other is as common."""
    found: dict[int, dict[int, int]] = {}
    for number, count in members.items():
        found.setdefault(numbers[world.classes[number].initial].get(channel, 0), {})[number] = count
    if len(found) == 1:
        return dict(members), True
    votes = {
        which: (sum(own.values()), _ranks_alike(world, numbers, channel, which, list(members)))
        for which, own in found.items()
    }
    best = max(votes, key=lambda which: votes[which])
    return found[best], all(votes[which] < votes[best] for which in votes if which != best)


def _ranks_alike(world: World, numbers: Numbers, channel: Channel, which: int, members: Sequence[int]) -> int:
    """Ranks with this sequence on their own channel of that kind, among all that hold the stages of these classes."""
    stages = {world.classes[number].trace.stages for number in members}
    return sum(
        len(one.ranks)
        for one in world.classes
        if one.trace.stages in stages and numbers[one.initial].get(channel, 0) == which
    )


def _messages(world: World, sequences: Sequences) -> Iterator[Mismatch]:
    compared = set()
    for number, one in enumerate(world.classes):
        for own in (c for c in sequences.calls[one.initial] if c.kind in MESSAGES):
            other = one.peers[own.peer]
            pair = ((number, own), (other, own.opposite))
            known = frozenset(pair)
            if known not in compared:
                compared.add(known)
                found = _pair(world, sequences, pair, (one.first, one.first + own.peer))
                if found:
                    yield found


def _pair(
    world: World, sequences: Sequences, sides: tuple[tuple[int, Channel], tuple[int, Channel]], ranks: tuple[int, int]
) -> Mismatch | None:  # fmt: skip
    """One side's messages to the other against what that does with them; the side is named that others do otherwise.

    sides  (class, channel) of each
    ranks  one of each class, each other's peers
    """
    initial = [world.classes[number].initial for number, _ in sides]
    kinds = [sequences.kinds[i].get(channel, 0) for i, (_, channel) in zip(initial, sides, strict=True)]
    if kinds[0] == kinds[1]:
        return None
    alike = [_ranks_alike(world, sequences.kinds, c, k, [n]) for k, (n, c) in zip(kinds, sides, strict=True)]
    twins = [_twin(world, sequences, *sides[s], kinds[1 - s]) for s in (0, 1)]
    odd = 1 if twins[0] is None or (twins[1] is not None and alike[1] < alike[0]) else 0
    if twins[odd] is None:
        odd = 0
    twin = twins[odd]
    mine, theirs = (sequences.calls[initial[s]].get(sides[s][1], []) for s in (odd, 1 - odd))
    if twin is not None:
        found = first_difference(mine, twin, needed, recognised)
    else:
        found = first_difference(mine, theirs, needed, lambda call: call.during.partition(" of ")[0])
    assert found
    return _told_apart(world, found, ranks[odd], ranks[1 - odd], mine, theirs, twin is not None, "", twin)


def _twin(world: World, sequences: Sequences, number: int, channel: Channel, kind: int) -> list[Call] | None:
    """What another class does on such a channel that would have met the other side; the likest one's calls."""
    one = world.classes[number]
    own = sequences.calls[one.initial].get(channel, [])
    others = {o.initial for o in world.classes if kind or o.trace.stages == one.trace.stages} - {one.initial}
    alike = [sequences.calls[i].get(channel, []) for i in sorted(others) if sequences.kinds[i].get(channel, 0) == kind]
    return max(alike, key=lambda calls: common_prefix(own, calls, recognised), default=None)


def _told_apart(
    world: World, found: Difference, rank: int, other: int, mine: Sequence[Call], theirs: Sequence[Call],
    clear: bool, among: str, twin: Sequence[Call] | None = None,
) -> Mismatch:  # fmt: skip
    """The sentence: what a rank does, and what the other one does instead.

    twin  of a message what ranks like this one issue: what stands in place of the call that is left out
    """
    own = mine[found.here] if found.here < len(mine) else None
    norm = theirs[found.there] if found.there < len(theirs) else None
    nth = f"its {ordinal(found.here + 1)}{among}"
    text, others = world.named(rank), world.named(other)
    if found.edit == "missing":
        at = (twin if twin is not None else theirs)[found.there]
        if at.kind in MESSAGES and twin is None:
            text += f" has no {'receive' if at.kind == 'send' else 'send'} that meets what {others} issues as {nth}"
        else:
            text += f" leaves out {told(at, rank)}, {nth}"
        text += f", and goes on to {told(own, rank)}" if own else ", and issues no more"
    else:
        assert own is not None
        at = own
        text += f" issues {told(own, rank)} as {nth}"
        text += f", which nothing of {others} meets" if found.edit == "extra" else ""
        text += f", in another order than {others}" if found.edit == "swapped" else ""
    text += f"; {others} issues {told(norm, other)} there" if norm else f"; {others} issues no more"
    calls = tuple((r, call) for r, call in ((rank, own), (other, norm)) if call is not None)
    return Mismatch((rank,) if clear else (rank, other), at.line, calls, text)
