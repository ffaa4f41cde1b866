"""A rank's trace as the four kinds of events that the simulation runs.

They are CUDA's: a run of operators, the issue of a call to a communicator, the mark of
what a stream holds so far (an event recorded), and a wait for a mark or for a call's end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autoplan.rehearsal.records import HOST, Call, RankTrace, Span
from autoplan.rehearsal.world.rank_equivalence import MESSAGES

RUN, ISSUE, MARK, WAIT = range(4)
Step = tuple[int, int, int, tuple[int, ...]]
"""(kind, stream, number of the run, the item or the mark, the marks that are waited for)"""
Pricing = Callable[[RankTrace, Call], float]


@dataclass(frozen=True)
class Queue:
    """What a rank's communicator works through in order: a group's, or, of messages outside of batches, a pair's.

    peer  of a pair: the other rank less this one; 0 of a group's
    """

    span: Span
    group: int
    peer: int = 0


@dataclass
class Item:
    """One entry of a queue: a collective, or the messages of a batch. Calls by their index in the trace."""

    queue: int
    calls: list[int] = field(default_factory=list)


@dataclass
class Script:
    """What one trace does.

    streams  by their dense numbers here: 0 is the host
    seconds  of each call
    steps    in the host's order
    runs     seconds of each run of operators
    run_of   of each call its run, -1 where it is no operator nor copy; within: seconds of the run before it
    items    entries of the queues
    marks    how many there are: one for each call that isn't in a run (at ``mark_of``), and those of joins and stops
    """

    trace: RankTrace
    seconds: list[float]
    streams: list[int] = field(default_factory=lambda: [HOST])
    queues: list[Queue] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)
    run_of: list[int] = field(default_factory=list)
    within: list[float] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    marks: int = 0


def script_of(trace: RankTrace, seconds: Pricing) -> Script:
    """The script of a trace whose calls are priced so; a wait for what isn't started passes at once."""
    return _Writer(trace, [seconds(trace, call) for call in trace.calls]).script


class _Writer:
    def __init__(self, trace: RankTrace, seconds: list[float]) -> None:
        calls = trace.calls
        self.script = Script(trace, seconds, run_of=[-1] * len(calls), within=[0.0] * len(calls), marks=len(calls))
        self.dense, self.queues = {HOST: 0}, dict[Queue, int]()
        self.open: dict[int, int] = {}
        self.started: dict[int, int] = {}
        self.batches: dict[tuple[int, Span, int], Item] = {}
        last = {(c.batch, c.span, c.group): i for i, c in enumerate(calls) if c.kind in MESSAGES and c.batch}
        self.posted = set(last.values())
        for index, call in enumerate(calls):
            self.add(index, call)

    def add(self, index: int, call: Call) -> None:
        stream = self.stream(call.stream)
        if call.kind in ("operator", "copy"):
            self.compute(index, stream)
        elif call.kind == "wait":
            self.step(WAIT, stream, index, tuple(self.started[n] for n in call.of if n in self.started))
        elif call.kind == "stop":
            self.wait_for(0, index, (stream,))
        elif call.kind == "join":
            self.wait_for(stream, index, tuple(self.stream(s) for s in call.of))
        else:
            self.issue(index, call, stream)

    def compute(self, index: int, stream: int) -> None:
        script = self.script
        if stream:
            self.open.pop(0, None)
        else:
            self.open = {0: self.open[0]} if 0 in self.open else {}
        if stream not in self.open:
            self.open[stream] = len(script.runs)
            script.steps.append((RUN, stream, len(script.runs), ()))
            script.runs.append(0.0)
        run = self.open[stream]
        script.run_of[index], script.within[index] = run, script.runs[run]
        script.runs[run] += script.seconds[index]

    def issue(self, index: int, call: Call, stream: int) -> None:
        single = call.kind in MESSAGES and not call.batch
        queue = Queue(call.span, call.group, call.peer if single else 0)
        if queue not in self.queues:
            self.queues[queue] = len(self.script.queues)
            self.script.queues.append(queue)
        batch = (call.batch, call.span, call.group)
        item = self.batches.get(batch) if call.batch else None
        if item is None:
            item = Item(self.queues[queue])
            if call.batch:
                self.batches[batch] = item
        item.calls.append(index)
        if not call.batch or index in self.posted:
            self.script.items.append(item)
            self.started.update((self.script.trace.calls[i].number, i) for i in item.calls)
            self.step(ISSUE, stream, len(self.script.items) - 1)

    def wait_for(self, stream: int, index: int, others: tuple[int, ...]) -> None:
        """A mark on each of the other streams, and a wait for them."""
        marks = []
        for other in others:
            marks.append(self.script.marks)
            self.script.marks += 1
            self.step(MARK, other, marks[-1])
        self.step(WAIT, stream, index, tuple(marks))

    def step(self, kind: int, stream: int, number: int, marks: tuple[int, ...] = ()) -> None:
        """Ends what runs on the stream; on the host everything, for what it issues next begins later."""
        if stream:
            self.open.pop(stream, None)
            self.open.pop(0, None)
        else:
            self.open.clear()
        self.script.steps.append((kind, stream, number, marks))

    def stream(self, name: int) -> int:
        if name not in self.dense:
            self.dense[name] = len(self.script.streams)
            self.script.streams.append(name)
        return self.dense[name]
