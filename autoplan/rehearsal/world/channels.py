"""What orders calls, and the sequence that each class of ranks issues there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from autoplan.rehearsal.records import Call, RankTrace, Span
from autoplan.rehearsal.world.rank_equivalence import MEETING, MESSAGES

UNEVEN = "all-to-all-v"
"""How collectives are named whose members may put in different bytes."""


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
    """The calls of each class of the initial partition, by channel.

    kinds   a number for what has to be equal in them, 0 of none
    orders  a number for their lines and microbatches, likewise
    """

    calls: tuple[dict[Channel, list[Call]], ...]
    kinds: tuple[dict[Channel, int], ...]
    orders: tuple[dict[Channel, int], ...]

    @staticmethod
    def of(traces: Sequence[RankTrace]) -> Sequences:
        calls = tuple(_by_channel(trace) for trace in traces)
        return Sequences(calls, _numbered(calls, needed), _numbered(calls, recognised))


def _numbered(
    calls: Iterable[dict[Channel, list[Call]]], key: Callable[[Call], Hashable]
) -> tuple[dict[Channel, int], ...]:  # fmt: skip
    """Equal sequences have equal numbers."""
    numbers: dict[tuple[Hashable, ...], int] = {(): 0}
    return tuple(
        {channel: numbers.setdefault(tuple(map(key, own)), len(numbers)) for channel, own in one.items()}
        for one in calls
    )


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
