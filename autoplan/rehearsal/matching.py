"""Does everything meet? Members' collectives in the same order, every send its receive, every wait what it waits for.

Of each communicator the members' sequences are compared, and of each pair of ranks the sends with the receives. Where
they differ, the rank is named that deviates from most members; in a tie, from the ranks elsewhere that do the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from autoplan.rehearsal.alignment import Difference, common_prefix, first_difference, reordered
from autoplan.rehearsal.records import Call, RankTrace, Span
from autoplan.rehearsal.sentences import described, listed, ordinal, placed, told
from autoplan.rehearsal.world import MEETING, MESSAGES, World, group_of

UNEVEN = "all-to-all-v"
"""How collectives are named whose members may put in different bytes."""


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


@dataclass(frozen=True)
class Channel:
    """What orders calls: a communicator of a group (peer 0), or one direction between a rank and a peer of it.

    posted  of messages whether they are posted in batches; those run on the group's communicator, others on the pair's
    """

    kind: str
    span: Span
    group: int
    peer: int = 0
    posted: bool = False

    @property
    def opposite(self) -> Channel:
        kind = "receive" if self.kind == "send" else "send"
        return Channel(kind, self.span, self.group, -self.peer, self.posted)


@dataclass(frozen=True)
class Sequences:
    """The calls of each class of the initial partition, by channel, and a number for what has to be equal in them."""

    calls: tuple[dict[Channel, list[Call]], ...]
    kinds: tuple[dict[Channel, int], ...]

    @staticmethod
    def of(traces: Sequence[RankTrace]) -> Sequences:
        numbers: dict[tuple[Hashable, ...], int] = {(): 0}
        calls = tuple(_by_channel(trace) for trace in traces)
        kinds = tuple(
            {channel: numbers.setdefault(tuple(map(needed, own)), len(numbers)) for channel, own in one.items()}
            for one in calls
        )
        return Sequences(calls, kinds)


def mismatches(world: World) -> tuple[Mismatch, ...]:
    """All of them, those of ranks alone first; none where every call meets."""
    traces = {one.initial: one.trace for one in world.classes}
    sequences = Sequences.of([traces[number] for number in sorted(traces)])
    first = {one.initial: one.first for one in reversed(world.classes)}
    waits = [m for number in sorted(traces) for m in _waits(world, first[number], traces[number])]
    return (*waits, *_collectives(world, sequences), *_messages(world, sequences))


def needed(call: Call) -> Hashable:
    """What has to be equal: of a collective on all members, of a message on both sides."""
    name = call.name if call.kind == "collective" else ""
    return name, call.dtype, 0 if call.name.startswith(UNEVEN) else call.bytes


def recognised(call: Call) -> Hashable:
    """What is equal, too, where both ranks run the same code, and tells like calls apart."""
    return call.line, call.during


def _by_channel(trace: RankTrace) -> dict[Channel, list[Call]]:
    found: dict[Channel, list[Call]] = {}
    known: dict[tuple[object, ...], list[Call]] = {}
    for call in trace.calls:
        if call.kind in MEETING:
            message = call.kind in MESSAGES
            key = (call.kind, call.span, call.group, call.peer if message else 0, message and call.batch > 0)
            if key not in known:
                known[key] = found[Channel(*key)] = []
            known[key].append(call)
    return found


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
    seen = set()
    for one in world.classes:
        for channel in (c for c in sequences.calls[one.initial] if c.kind == "collective"):
            members = dict(one.members[channel.span])
            known = (channel, frozenset(members))
            if known not in seen:
                seen.add(known)
                yield from _communicator(world, sequences, channel, members)


def _communicator(
    world: World, sequences: Sequences, channel: Channel, members: dict[int, int]
) -> Iterator[Mismatch]:  # fmt: skip
    """Every class of members against the norm: what most members issue, or in a tie most ranks of the world."""
    kinds = {number: sequences.kinds[world.classes[number].initial].get(channel, 0) for number in members}
    votes: dict[int, int] = {}
    for number, count in members.items():
        votes[kinds[number]] = votes.get(kinds[number], 0) + count
    backing = {kind: _ranks_alike(world, sequences, channel, kind, list(members)) for kind in votes}
    norm = max(votes, key=lambda kind: (votes[kind], backing[kind]))
    clear = all((votes[norm], backing[norm]) > (votes[kind], backing[kind]) for kind in votes if kind != norm)
    usual = next(number for number in members if kinds[number] == norm)
    compared = set()
    for number in members:
        mine, theirs = (sequences.calls[world.classes[n].initial].get(channel, []) for n in (number, usual))
        if world.classes[number].initial in compared:
            continue
        compared.add(world.classes[number].initial)
        if kinds[number] != norm:
            found = first_difference(mine, theirs, needed, recognised)
        else:
            found = reordered(mine, theirs, recognised) if number != usual else None
        if found:
            rank = world.classes[number].first
            group = group_of(rank, channel.span)
            other = int(group[world.class_of[group] == usual][0])
            yield _told_apart(world, found, rank, other, mine, theirs, clear, f" among ranks {listed(group.tolist())}")


def _ranks_alike(world: World, sequences: Sequences, channel: Channel, kind: int, numbers: Sequence[int]) -> int:
    """Ranks with this sequence on their own channel of that kind, among all that hold the stages of these classes."""
    stages = {world.classes[number].trace.stages for number in numbers}
    return sum(
        len(one.ranks)
        for one in world.classes
        if one.trace.stages in stages and sequences.kinds[one.initial].get(channel, 0) == kind
    )


def _messages(world: World, sequences: Sequences) -> Iterator[Mismatch]:
    seen = set()
    for number, one in enumerate(world.classes):
        for own in (c for c in sequences.calls[one.initial] if c.kind in MESSAGES):
            other = one.peers[own.peer]
            send, sender, receiver = (own, number, other) if own.kind == "send" else (own.opposite, other, number)
            if (send, sender, receiver) not in seen:
                seen.add((send, sender, receiver))
                found = _pair(world, sequences, send, sender, receiver)
                if found:
                    yield found


def _pair(world: World, sequences: Sequences, send: Channel, sender: int, receiver: int) -> Mismatch | None:
    """The sends of a class to a peer against what the peer receives; the side is named that others don't do alike."""
    sides = ((sender, send), (receiver, send.opposite))
    initial = [world.classes[number].initial for number, _ in sides]
    kinds = [sequences.kinds[i].get(channel, 0) for i, (_, channel) in zip(initial, sides, strict=True)]
    if kinds[0] == kinds[1]:
        return None
    alike = [_ranks_alike(world, sequences, c, k, [n]) for k, (n, c) in zip(kinds, sides, strict=True)]
    twins = [_twin(world, sequences, *sides[s], kinds[1 - s]) for s in (0, 1)]
    odd = 0 if twins[0] is not None and (twins[1] is None or alike[0] <= alike[1]) else 1
    clear = twins[odd] is not None
    if not clear:
        odd = 0
    mine, theirs = (sequences.calls[initial[s]].get(sides[s][1], []) for s in (odd, 1 - odd))
    twin = twins[odd]
    if twin is not None:
        found = first_difference(mine, twin, needed, recognised)
    else:
        found = first_difference(mine, theirs, needed, lambda call: call.during.partition(" of ")[0])
    assert found
    rank = world.classes[sides[odd][0]].first
    return _told_apart(world, found, rank, rank + sides[odd][1].peer, mine, theirs, clear, "", twin)


def _twin(world: World, sequences: Sequences, number: int, channel: Channel, kind: int) -> list[Call] | None:
    """What another class does on such a channel that would have met the other side; the likest one's calls."""
    own = sequences.calls[world.classes[number].initial].get(channel, [])
    others = sorted({one.initial for one in world.classes} - {world.classes[number].initial})
    alike = [sequences.calls[i][channel] for i in others if kind and sequences.kinds[i].get(channel, 0) == kind]
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
