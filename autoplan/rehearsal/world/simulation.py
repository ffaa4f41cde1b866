"""The events of a world: each class's representative, by NCCL's rules.

The host issues calls without waiting, except where it stops. Operators run on their stream in order. A collective runs
on its communicator's own stream: it begins when what the issuing stream held is done, the communicator's call before
it has ended, and so on all members; all end together. Messages of a batch start together on the group's communicator,
which goes on when all have ended; a message alone runs on a communicator of the pair.

No choice depends on time, so the order in which ready calls are taken changes nothing: every time is the greatest of
those it waits for (a Kahn process network). What is left when nothing can go on is a deadlock.
"""

from __future__ import annotations

from collections import deque

from autoplan.rehearsal.world.deadlock import Halt
from autoplan.rehearsal.world.rank_equivalence import World
from autoplan.rehearsal.world.script import ISSUE, MARK, RUN, Script, Step


class _Collective:
    """A communicator of a group: who has arrived at its next collective."""

    def __init__(self, members: int) -> None:
        self.members, self.ready, self.seconds = members, 0.0, 0.0
        self.arrived: list[tuple[SimulatedRank, int]] = []


class _Messages:
    """One direction between two ranks over one communicator: (rank, item, call, when, seconds) that wait.

    A send that has ended by itself waits for its receive all the same.
    """

    def __init__(self) -> None:
        self.sends: deque[tuple[SimulatedRank, int, int, float, float, bool]] = deque()
        self.receives: deque[tuple[SimulatedRank, int, int, float, float]] = deque()


class SimulatedRank:
    """The representative of a class while it runs.

    start, end  by mark: of a call at its index
    runs        when each run of operators begins
    last        when the last of what was issued ends
    """

    def __init__(self, number: int, world: World, script: Script) -> None:
        self.number, self.one, self.script = number, world.classes[number], script
        self.at = 0  # the host's next step
        self.now = [0.0] * len(script.streams)  # what each stream holds is done then; [0] is the host's clock
        self.held: list[deque[tuple[Step, float]]] = [deque() for _ in script.streams]
        self.queues: list[deque[int]] = [deque() for _ in script.queues]
        self.free = [0.0] * len(script.queues)
        self.reached: list[float | None] = [None] * len(script.items)
        self.begun = [False] * len(script.items)
        self.left = [len(item.calls) for item in script.items]
        self.done: list[float | None] = [None] * script.marks  # when what waits for a mark goes on
        self.start, self.end = [0.0] * script.marks, [0.0] * script.marks
        self.runs = [0.0] * len(script.runs)
        self.waiting: dict[int, list[int]] = {}

    @property
    def last(self) -> float:
        return max(*self.now, *self.free, 0.0)

    @property
    def finished(self) -> bool:
        return self.at == len(self.script.steps) and not any(self.held) and not any(self.queues)


class Simulation:
    """All classes at once.

    eager_bytes  a send of at most so many bytes ends by itself
    """

    def __init__(self, world: World, scripts: dict[int, Script], eager_bytes: int) -> None:
        self.world, self.eager_bytes = world, eager_bytes
        self.ranks = [SimulatedRank(n, world, scripts[one.initial]) for n, one in enumerate(world.classes)]
        self.woken: list[tuple[SimulatedRank, int]] = []  # streams whose first held step may go on
        self.ready: list[tuple[SimulatedRank, int]] = []  # items that may begin
        self.groups: dict[tuple, _Collective] = {}
        self.pairs: dict[tuple, _Messages] = {}

    def run(self) -> None:
        for rank in self.ranks:
            self.issue(rank)
        while self.ready or self.woken:
            if self.ready:
                self.begin(*self.ready.pop())
            else:
                self.resume(*self.woken.pop())

    def issue(self, rank: SimulatedRank) -> None:
        """The host goes on until it has to wait itself."""
        steps, held, items, now = rank.script.steps, rank.held, rank.script.items, rank.now
        while rank.at < len(steps) and not held[0]:
            step = steps[rank.at]
            rank.at += 1
            kind, stream, number, _ = step
            if kind == ISSUE:
                rank.queues[items[number].queue].append(number)
            if held[stream] or not self.take(rank, step, now[0]):
                held[stream].append((step, now[0]))

    def resume(self, rank: SimulatedRank, stream: int) -> None:
        """A stream goes on with what it holds."""
        held = rank.held[stream]
        while held and self.take(rank, *held[0]):
            held.popleft()
        if not stream and not held:
            self.issue(rank)

    def take(self, rank: SimulatedRank, step: Step, issued: float) -> bool:
        """A step at the head of its stream; False where it has to wait."""
        kind, stream, number, marks = step
        reached = max(rank.now[stream], issued)
        if kind == RUN:
            rank.runs[number] = reached
            rank.now[stream] = reached + rank.script.runs[number]
        elif kind == ISSUE:
            rank.reached[number] = reached
            if rank.queues[rank.script.items[number].queue][0] == number:
                self.ready.append((rank, number))
        elif kind == MARK:
            self.finish(rank, number, reached)
        else:
            rank.start[number] = reached
            for mark in marks:
                done = rank.done[mark]
                if done is None:
                    rank.waiting.setdefault(mark, []).append(stream)
                    return False
                reached = max(reached, done)
            rank.now[stream] = rank.end[number] = reached
        return True

    def finish(self, rank: SimulatedRank, mark: int, at: float) -> None:
        rank.done[mark] = at
        self.woken += [(rank, stream) for stream in rank.waiting.pop(mark, ())]

    def begin(self, rank: SimulatedRank, number: int) -> None:
        """An item at the head of its queue, which its stream has reached."""
        item = rank.script.items[number]
        reached = rank.reached[number]
        assert reached is not None
        at = max(reached, rank.free[item.queue])
        rank.begun[number] = True
        if rank.script.trace.calls[item.calls[0]].kind == "collective":
            self.arrive(rank, number, at)
        else:
            for index in item.calls:
                self.post(rank, number, index, at)

    def arrive(self, rank: SimulatedRank, number: int, at: float) -> None:
        group = self.group(rank, number)
        group.arrived.append((rank, number))
        group.ready = max(group.ready, at)
        group.seconds = max(group.seconds, rank.script.seconds[rank.script.items[number].calls[0]])
        if len(group.arrived) == group.members:
            arrived, start, end = group.arrived, group.ready, group.ready + group.seconds
            group.arrived, group.ready, group.seconds = [], 0.0, 0.0
            for member, item in arrived:
                self.ended(member, item, member.script.items[item].calls[0], start, end)

    def group(self, rank: SimulatedRank, number: int) -> _Collective:
        queue = rank.script.queues[rank.script.items[number].queue]
        members = rank.one.members[queue.span]
        return self.groups.setdefault((queue, members), _Collective(len(members)))

    def pair(self, rank: SimulatedRank, index: int) -> _Messages:
        """The direction that a message belongs to, of the two ranks' common communicator."""
        call = rank.script.trace.calls[index]
        ends, offset = (rank.number, rank.one.peers[call.peer]), call.peer
        if call.kind == "receive":
            ends, offset = (ends[1], ends[0]), -offset
        key = (ends, offset, call.span, call.group, call.batch > 0)
        if key not in self.pairs:
            self.pairs[key] = _Messages()
        return self.pairs[key]

    def post(self, rank: SimulatedRank, number: int, index: int, at: float) -> None:
        """One message; it begins with its peer's."""
        call, seconds, pair = rank.script.trace.calls[index], rank.script.seconds[index], self.pair(rank, index)
        if call.kind == "receive":
            pair.receives.append((rank, number, index, at, seconds))
        else:
            eager = call.bytes <= self.eager_bytes
            pair.sends.append((rank, number, index, at, seconds, eager))
            if eager:
                self.ended(rank, number, index, at, at + seconds)
        while pair.sends and pair.receives:
            sender, send, sent, left, price, eager = pair.sends.popleft()
            receiver, receive, received, ready, other = pair.receives.popleft()
            if eager:
                self.ended(receiver, receive, received, max(ready, left), max(ready, left + price))
                continue
            start = max(left, ready)
            end = start + max(price, other)
            self.ended(sender, send, sent, start, end)
            self.ended(receiver, receive, received, start, end)

    def ended(self, rank: SimulatedRank, number: int, index: int, start: float, end: float) -> None:
        """A call of an item; with the last one the queue goes on, and all who wait for one of them."""
        rank.start[index], rank.end[index] = start, end
        rank.left[number] -= 1
        if rank.left[number]:
            return
        item = rank.script.items[number]
        done = max(rank.end[i] for i in item.calls)
        rank.free[item.queue] = done
        for i in item.calls:
            self.finish(rank, i, done)
        queue = rank.queues[item.queue]
        queue.popleft()
        if queue and rank.reached[queue[0]] is not None:
            self.ready.append((rank, queue[0]))

    def halts(self) -> dict[int, Halt]:
        """Of each class that hasn't finished the first call that it stands at, and the offsets or classes it lacks."""
        found = {}
        for rank in self.ranks:
            if rank.finished:
                continue
            heads = [queue[0] for queue in rank.queues if queue and rank.begun[queue[0]]]
            number = min(heads, key=lambda n: rank.script.items[n].calls[0])
            calls = rank.script.trace.calls
            open_calls = [i for i in rank.script.items[number].calls if rank.done[i] is None]
            call = calls[open_calls[0]]
            if call.kind == "collective":
                there = {member.number for member, _ in self.group(rank, number).arrived}
                found[rank.number] = Halt(call, missing=frozenset(dict(rank.one.members[call.span])) - there)
            else:
                waiting = [i for i in open_calls if self.unmet(rank, i)]
                found[rank.number] = Halt(calls[waiting[0]])
        return found

    def unmet(self, rank: SimulatedRank, index: int) -> bool:
        pair = self.pair(rank, index)
        return any(entry[0] is rank and entry[2] == index for entry in (*pair.sends, *pair.receives))
