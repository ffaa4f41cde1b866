"""The graph of a compiled segment: run once, and from then on repeated as that run was written down.

A step runs the same graph in each layer of a class and in each microbatch. What it issues follows from the shapes and
strides that it is given, and from what the host holds: the same calls and findings, and storages that come and go
between them. So later runs note these, let go of each argument where it was last read, and return tensors on storages
of their own. A run that told more than that is run again each time: a collective that is waited for elsewhere, calls of
several lines, a result on a storage that nobody told of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from autoplan.rehearsal.device.accelerator import dispatching, unheard
from autoplan.rehearsal.device.call_recorder import Recorder
from autoplan.rehearsal.device.storages import Change, Life
from autoplan.rehearsal.records import Call

Geometry = tuple[torch.Size, tuple[int, ...], int | torch.SymInt, torch.dtype]
Name = tuple[str, int]
"""A storage: an argument's, by its first place, or the n-th that the run made."""
ARGUMENT, MADE = "argument", "made"
READ = 4096  # elements of a tensor in the host's memory that are compared; greater ones are told apart as objects


@dataclass(frozen=True)
class Event:
    """After so many calls of the run a storage begins (with its ``life``), ends, or an argument is let go."""

    calls: int
    storage: Name
    life: Life | None = None


@dataclass(frozen=True)
class Returned:
    """A result: a value that is no tensor of the device, the argument at a place, or a view of a storage. A view of an
    argument's storage is placed from where the first argument in it begins."""

    value: Any = None
    place: int | None = None
    storage: Name | None = None
    geometry: Geometry | None = None


@dataclass(frozen=True)
class Run:
    """What one run did; calls are counted from its first.

    findings  what they are and their text, without the line, and how often each came
    """

    calls: tuple[Call, ...]
    events: tuple[Event, ...]
    returned: tuple[Returned, ...]
    findings: tuple[tuple[str, str, int], ...]


def graph_runner(graph: fx.GraphModule, recorder: Recorder | None) -> Callable[[list], Any]:
    """Runs a graph node by node; as inductor's code does, it lets go of each argument after its last use, and
    of what it returned when it has returned it. With a recorder it repeats what it did before."""
    known: dict[object, Run | None] = {}

    def run(given: list) -> Any:
        if recorder is None or not dispatching():
            with nullcontext() if dispatching() else unheard(given):
                return interpreted(fx.Interpreter(graph), given)
        firsts = _firsts(given)
        key = (recorder.stream(), *firsts, *(_seen(x, given[n]) for x, n in zip(given, firsts, strict=True)))
        if key not in known:
            written = _Written(graph, recorder, given)
            result = interpreted(written, given)
            known[key] = written.run_of(result)
            return result
        before = known[key]
        return interpreted(fx.Interpreter(graph), given) if before is None else repeat(before, recorder, given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def interpreted(interpreter: fx.Interpreter, given: list) -> Any:
    try:
        return interpreter.boxed_run(given)
    finally:
        interpreter.env = {}


class _Written(fx.Interpreter):
    """An interpreter that writes down what its one run does.

    named   the storage of each key at this moment
    values  for each node the storages that its value holds, and how many events and calls came before its end
    """

    def __init__(self, graph: fx.GraphModule, recorder: Recorder, given: Sequence[Any]) -> None:
        super().__init__(graph)
        self.recorder, self.start = recorder, len(recorder.calls)
        self.findings, self.in_flight = Counter(recorder.findings), dict(recorder.in_flight)
        self.journal: list[Change] = []
        recorder.storages.journal = self.journal
        self.events: list[Event] = []
        self.firsts = _firsts(given)
        self.named: dict[int, Name] = {}
        for place, x in enumerate(given):
            if isinstance(x, FakeTensor):
                self.named[_key(x)] = (ARGUMENT, self.firsts[place])
        self.places = {id(x): (place, _described(x)) for place, x in enumerate(given)}
        self.offsets = [x.storage_offset() if isinstance(x, FakeTensor) else 0 for x in given]
        given_nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.values: dict[fx.Node, tuple[set[Name], int, int]] = {
            n: (self.names([x]), 0, 0) for n, x in zip(given_nodes, given, strict=True)
        }

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.catch_up()
        self.values[n] = (self.names(tree_leaves(result)), len(self.events), len(self.recorder.calls) - self.start)
        return result

    def names(self, values: Iterable[Any]) -> set[Name]:
        return {self.named[_key(x)] for x in values if isinstance(x, FakeTensor) and _key(x) in self.named}

    def catch_up(self) -> None:
        """Takes over what storages began and ended since."""
        for call, key, life in self.journal:
            if life is not None:
                self.named[key] = (MADE, len(self.events))
                self.events.append(Event(call - self.start, self.named[key], life))
            else:
                name = self.named.pop(key, None)
                if name is not None and name[0] == MADE:
                    self.events.append(Event(call - self.start, name))
        self.journal.clear()

    def run_of(self, result: Any) -> Run | None:
        """What the run did; None where that can't be repeated."""
        recorder, calls = self.recorder, self.recorder.calls[self.start :]
        self.catch_up()
        recorder.storages.journal = None
        lives = [event.life for event in self.events if event.life is not None]
        findings = recorder.findings - self.findings
        lines = {call.line for call in calls} | {life.line for life in lives} | {line for _, line, _ in findings}
        kinds = {life.kind for life in lives}
        said = recorder.in_flight != self.in_flight
        outer = any(number < self.start for call in calls if call.kind == "wait" for number in call.of)
        tensors = [x for x in result if isinstance(x, torch.Tensor) and not _of_host(x)]
        known = all(type(x) is FakeTensor and _key(x) in self.named for x in tensors)
        if said or outer or len(lines) > 1 or len(kinds) > 1 or not known:
            return None
        return Run(
            tuple(replace(c, number=c.number - self.start, of=_moved(c, -self.start)) for c in calls),
            tuple(self.with_drops()), tuple(map(self.returned, result)),
            tuple((what, text, count) for (what, _, text), count in findings.items()),
        )  # fmt: skip

    def with_drops(self) -> Iterator[Event]:
        """The events, and each argument's end after the last value on its storage; none where one is returned."""
        uses = {value: user for user, values in self.user_to_last_uses.items() for value in values}
        never = (len(self.events) + 1, 0)
        ends: dict[Name, tuple[int, int]] = {}
        for node, (held, *_) in self.values.items():
            end = self.values[uses[node]][1:] if node in uses else never
            ends |= {name: max(end, ends.get(name, (0, 0))) for name in held if name[0] == ARGUMENT}
        dropped = sorted((*end, name) for name, end in ends.items() if end != never)
        for place, event in enumerate((*self.events, None)):
            while dropped and dropped[0][0] == place:
                yield Event(dropped[0][1], dropped.pop(0)[2])
            if event is not None:
                yield event

    def returned(self, x: Any) -> Returned:
        if not isinstance(x, FakeTensor):
            return Returned(value=x.clone() if isinstance(x, torch.Tensor) else x)
        storage = self.named[_key(x)]
        place, described = self.places.get(id(x), (None, None))
        if place is not None and storage == (ARGUMENT, self.firsts[place]) and described == _geometry(x):
            return Returned(place=place)  # else another tensor, made where that one has gone
        size, stride, offset, dtype = _geometry(x)
        return Returned(storage=storage, geometry=(size, stride, offset - self.origin(storage), dtype))

    def origin(self, storage: Name) -> int | torch.SymInt:
        return self.offsets[storage[1]] if storage[0] == ARGUMENT else 0


def repeat(run: Run, recorder: Recorder, given: list) -> tuple[Any, ...]:
    """Notes what a run did, and returns as it returned."""
    arguments, firsts = list(given), _firsts(given)
    given.clear()
    like = next(x for x in arguments if isinstance(x, FakeTensor))
    fake, device = like.fake_mode, like.fake_device
    del like
    same = {one.place: arguments[one.place] for one in run.returned if one.place is not None}
    stays = {one.storage for one in run.returned if one.storage is not None}
    kept = {name: arguments[name[1]] for name in stays if name[0] == ARGUMENT}
    line, start, storages, done = recorder.line(), len(recorder.calls), recorder.storages, 0
    kind = recorder.kind(line)
    recorder.findings.update({(what, line, text): count for what, text, count in run.findings})
    with _disable_current_modes():
        for event in run.events:
            recorder.repeat(run.calls[done : event.calls], start, line)
            done = max(done, event.calls)
            name = event.storage
            if event.life is not None and name in stays:
                bytes = torch.empty(event.life.bytes, dtype=torch.uint8, device="meta")
                kept[name] = FakeTensor(fake, bytes, device)
                storages.follow(kept[name], kind, event.life.name, line, recorder.during)
            elif event.life is not None:
                storages.pass_by(name[1], event.life, kind, line, recorder.during)
            elif name[0] == MADE:
                storages.passed(name[1])
            else:
                arguments = [None if first == name[1] else x for x, first in zip(arguments, firsts, strict=True)]
        recorder.repeat(run.calls[done:], start, line)
        return tuple(_result(one, same, kept) for one in run.returned)


def _result(one: Returned, same: dict[int, Any], kept: dict[Name, FakeTensor]) -> Any:
    if one.place is not None:
        return same[one.place]
    if one.storage is None:
        return one.value.clone() if isinstance(one.value, torch.Tensor) else one.value
    base = kept[one.storage]
    return _view(base, one.geometry, base.storage_offset() if one.storage[0] == ARGUMENT else 0)


def _view(base: FakeTensor, geometry: Geometry | None, origin: int | torch.SymInt) -> FakeTensor:
    assert geometry is not None
    size, stride, offset, dtype = geometry
    bare = torch.empty(0, dtype=dtype, device="meta").set_(base.untyped_storage(), origin + offset, size, stride)
    return FakeTensor(base.fake_mode, bare, base.fake_device)


def _moved(call: Call, by: int) -> tuple[int, ...]:
    """The calls that a wait waits for; a join's stream stays."""
    return tuple(number + by for number in call.of) if call.kind == "wait" else call.of


def _key(x: FakeTensor) -> int:
    return id(x.untyped_storage())


def _geometry(x: FakeTensor) -> Geometry:
    return x.shape, x.stride(), x.storage_offset(), x.dtype


def _described(x: Any) -> object:
    return _geometry(x) if isinstance(x, FakeTensor) else (type(x), x)


def _seen(x: Any, first: Any) -> object:
    """What a run depends on, of an argument; ``first`` is the first one in its storage, by which it is placed."""
    if isinstance(x, FakeTensor):
        return x.shape, x.stride(), x.storage_offset() - first.storage_offset(), x.dtype
    if _of_host(x) and x.numel() <= READ:
        return x.shape, x.dtype, tuple(x.flatten().tolist())
    return type(x), x


def _of_host(x: Any) -> bool:
    """Whether it is a tensor in the host's memory, which has values."""
    return isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) and x.device.type == "cpu"


def _firsts(given: Iterable[Any]) -> tuple[int, ...]:
    """For each argument the first that lies in the same storage."""
    found: dict[object, int] = {}
    keys = (_key(x) if isinstance(x, FakeTensor) else ("no tensor", place) for place, x in enumerate(given))
    return tuple(found.setdefault(key, place) for place, key in enumerate(keys))
