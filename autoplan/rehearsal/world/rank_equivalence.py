"""The whole world from a few ranks: classes of ranks that no simulation tells apart, by colour refinement.

Ranks begin in classes of the same calls. A class is split until, for each span of its collectives, the groups of its
ranks hold the same classes, each as often, and for each peer offset the peers are of one class. (The span of a message
only says on which communicator it runs.) Then the ranks of a class are bisimilar: what a rank can do next, and when,
follows from its own calls and from how far its partners are, and by induction over the calls partners of the same
classes are equally far. So a simulation of one representative of each class is exact for the whole world (Paige and
Tarjan 1987, "Three partition refinement algorithms").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import RehearsalError
from autoplan.rehearsal.records import Call, RankClass, RankTrace, Span

Ranks = NDArray[np.int64]
MESSAGES = ("send", "receive")
MEETING = ("collective", *MESSAGES)
"""Calls that other ranks take part in."""


@dataclass(frozen=True)
class SimulatedClass:
    """Ranks with the same calls whose partners are of the same classes.

    initial  the class of the initial partition that it lies in
    trace    that class's; spans and peers are relative, so it is every rank's of the class
    members  for each span of the collectives (class, members) of the group, its own class included, by class
    peers    for each offset of a message the class of rank + offset
    """

    initial: int
    reason: str
    ranks: tuple[int, ...] = field(repr=False)
    trace: RankTrace = field(repr=False)
    members: Mapping[Span, tuple[tuple[int, int], ...]]
    peers: Mapping[int, int]

    @property
    def first(self) -> int:
        """The representative."""
        return self.ranks[0]


@dataclass(frozen=True)
class World:
    """All ranks: the classes, by their first ranks, and of each rank its class's number, [devices]."""

    classes: tuple[SimulatedClass, ...]
    class_of: Ranks = field(repr=False)

    def named(self, rank: int) -> str:
        """ "rank 17 (stage 3)"."""
        return f"rank {rank} ({self.classes[self.class_of[rank]].reason})"


@dataclass(frozen=True)
class _Groups:
    """The groups of one span that some class uses.

    users    ranks that use it; place: of each the row of its group
    members  [groups, size]
    """

    users: Ranks
    place: Ranks
    members: Ranks


def refine(devices: int, classes: Sequence[RankClass], traces: Sequence[RankTrace]) -> World:
    """The coarsest partition within `classes` that is exact.

    devices  of the world
    classes  the initial partition: every rank in exactly one; a rank with calls of its own is a class of its own
    traces   of each class, from any of its ranks

    Raises RehearsalError where the classes are no partition, a span is none, or a group or a peer lies outside the
    world.
    """
    initial = _initial(devices, classes, traces)
    spans, offsets, named = _uses(traces)
    for span, users in named.items():
        _groups(devices, span, initial, users)
    grouped = {span: _groups(devices, span, initial, users) for span, users in spans.items()}
    sends = {offset: _senders(devices, offset, initial, users) for offset, users in offsets.items()}
    colour, count = initial, len(classes)
    while True:
        sights = [(groups.users, _kinds(groups, colour)[1][groups.place]) for groups in grouped.values()]
        sights += [(users, colour[users + offset]) for offset, users in sends.items()]
        refined = _split(colour, sights)
        found = int(refined.max()) + 1
        if found == count:
            return _world(colour, initial, classes, traces, grouped, sends)
        colour, count = refined, found


def group_of(rank: int, span: Span) -> Ranks:
    """The ranks of a rank's group over a span, ascending."""
    return _members(np.array([rank - _own(np.array([rank]), span)[0]]), span)[0]


def _initial(devices: int, classes: Sequence[RankClass], traces: Sequence[RankTrace]) -> Ranks:
    if len(classes) != len(traces):
        raise RehearsalError(f"{len(classes)} classes", f"there are {len(traces)} traces", "give one trace of each")
    colour = np.full(devices, -1)
    for number, (one, trace) in enumerate(zip(classes, traces, strict=True)):
        ranks = np.array(one.ranks)
        if not ranks.size or ranks.min() < 0 or ranks.max() >= devices or (colour[ranks] >= 0).any():
            cause = f"its ranks aren't some of {devices} that no other class holds"
            raise RehearsalError(f"class {one.reason!r}", cause, "put each rank into one class")
        colour[ranks] = number
        if colour[trace.rank] != number:
            raise RehearsalError(f"rank {trace.rank}", f"it isn't of class {one.reason!r}", "give one of its own")
    if (colour < 0).any():
        missing = int(np.flatnonzero(colour < 0)[0])
        raise RehearsalError(f"rank {missing}", "it is in no class", "put each rank into one class")
    return colour


Users = dict[int, Call]
"""The classes that use a span or an offset, with their first call that does."""


def _uses(traces: Sequence[RankTrace]) -> tuple[dict[Span, Users], dict[int, Users], dict[Span, Users]]:
    """Who uses each span of a collective, each peer offset, and each span of a message."""
    spans: dict[Span, Users] = {}
    offsets: dict[int, Users] = {}
    named: dict[Span, Users] = {}
    for number, trace in enumerate(traces):
        for call in trace.calls:
            if call.kind in MEETING:
                (named if call.kind in MESSAGES else spans).setdefault(call.span, {}).setdefault(number, call)
                if call.kind in MESSAGES:
                    offsets.setdefault(call.peer, {}).setdefault(number, call)
    return spans, offsets, named


def _groups(devices: int, span: Span, initial: Ranks, users: Users) -> _Groups:
    ranks = np.flatnonzero(np.isin(initial, list(users)))
    above = 0
    for stride, size in span:
        if stride < 1 or size < 1 or (above and above % (stride * size)):
            raise _astray(int(ranks[0]), initial, users, f"span {span} is none: strides descend and enclose each other")
        above = stride
    firsts, place = np.unique(ranks - _own(ranks, span), return_inverse=True)
    members = _members(firsts, span)
    outside = ranks[members.max(axis=1)[place] >= devices]
    if outside.size:
        raise _astray(int(outside[0]), initial, users, f"its group over {span} reaches beyond {devices} devices")
    return _Groups(ranks, place, members)


def _senders(devices: int, offset: int, initial: Ranks, users: Users) -> Ranks:
    ranks = np.flatnonzero(np.isin(initial, list(users)))
    outside = ranks[(ranks + offset < 0) | (ranks + offset >= devices)]
    if outside.size or not offset:
        rank = int(outside[0]) if outside.size else int(ranks[0])
        raise _astray(rank, initial, users, f"its peer would be rank {rank + offset} of {devices}")
    return ranks


def _astray(rank: int, initial: Ranks, users: Users, cause: str) -> RehearsalError:
    call = users[int(initial[rank])]
    return RehearsalError(f"{call.name or call.kind} of rank {rank} at {call.line}", cause, "mend the program")


def _own(ranks: Ranks, span: Span) -> Ranks:
    """How far each rank lies from its group's first."""
    return sum((ranks // stride % size * stride for stride, size in span), np.zeros_like(ranks))


def _members(firsts: Ranks, span: Span) -> Ranks:
    members = firsts[:, None]
    for stride, size in span:
        members = (members[:, :, None] + stride * np.arange(size)).reshape(len(firsts), -1)
    return members


def _kinds(groups: _Groups, colour: Ranks) -> tuple[Ranks, Ranks]:
    """The multisets of classes that groups hold, [multisets, size], each row ascending; and of each group its row."""
    rows = np.sort(colour[groups.members], axis=1)
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, kinds = np.unique(as_bytes, return_index=True, return_inverse=True)
    return rows[first], kinds.reshape(-1)


def _split(colour: Ranks, sights: Iterable[tuple[Ranks, Ranks]]) -> Ranks:
    """The classes split by what their ranks see, (who looks, what) at a time; who doesn't look sees nothing.

    What a rank has seen so far is one number, made small again before it passes 64 bits.
    """
    bound = int(colour.max()) + 1
    for users, seen in sights:
        base = int(seen.max()) + 2
        if bound * base >= 1 << 62:
            colour = np.unique(colour, return_inverse=True)[1].reshape(-1)
            bound = int(colour.max()) + 1
        sight = np.zeros_like(colour)
        sight[users] = 1 + seen
        colour, bound = colour * base + sight, bound * base
    return np.unique(colour, return_inverse=True)[1].reshape(-1)


def _world(
    colour: Ranks, initial: Ranks, classes: Sequence[RankClass], traces: Sequence[RankTrace],
    grouped: Mapping[Span, _Groups], sends: Mapping[int, Ranks],
) -> World:  # fmt: skip
    firsts, found = np.unique(colour, return_index=True)[1], np.empty(int(colour.max()) + 1, dtype=np.int64)
    found[colour[np.sort(firsts)]] = np.arange(len(firsts))
    class_of = found[colour]
    ranks = np.split(np.argsort(class_of, kind="stable"), np.cumsum(np.bincount(class_of))[:-1])
    members: list[dict[Span, tuple[tuple[int, int], ...]]] = [{} for _ in ranks]
    peers: list[dict[int, int]] = [{} for _ in ranks]
    for span, groups in grouped.items():
        rows, kinds = _kinds(groups, class_of)
        counted = [tuple(sorted(Counter(row).items())) for row in rows.tolist()]
        for number, kind in zip(class_of[groups.users].tolist(), kinds[groups.place].tolist(), strict=True):
            members[number][span] = counted[kind]
    for offset, users in sends.items():
        for number, peer in zip(class_of[users].tolist(), class_of[users + offset].tolist(), strict=True):
            peers[number][offset] = peer
    made = []
    for number, own in enumerate(ranks):
        first = int(initial[own[0]])
        reason, trace = classes[first].reason, traces[first]
        made.append(SimulatedClass(first, reason, tuple(own.tolist()), trace, members[number], peers[number]))
    return World(tuple(made), class_of)
