"""Worlds of a few ranks, written by hand: what each rank issues, at prices that stand in the calls themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoplan.rehearsal.records import Call, Peak, RankClass, RankTrace, Span
from autoplan.rehearsal.world.rank_equivalence import World, refine

NO_PEAK = Peak(0, "", "", "", (), ())


def trace_of(rank: int, calls: Sequence[Call], stage: int = 0) -> RankTrace:
    return RankTrace(rank, (stage,), 1, tuple(calls), NO_PEAK, {})


def price(trace: RankTrace, call: Call) -> float:
    """Seconds, as these worlds write them into the bytes moved."""
    return float(call.moved)


class Program:
    """What one rank issues, in the host's order; each call returns its number."""

    def __init__(self, file: str = "program.py") -> None:
        self.calls: list[Call] = []
        self.file, self.batch = file, 0

    def add(self, kind: str, name: str, **fields: object) -> int:
        number = len(self.calls)
        line = fields.pop("line", None) or f"{self.file}:{number}"
        self.calls.append(Call(kind, name, number, line=str(line), **fields))  # type: ignore[arg-type]
        return number

    def compute(self, seconds: int, stream: int = 0, **more: object) -> int:
        return self.add("operator", "aten.mm.default", stream=stream, moved=seconds, **more)

    def collective(self, span: Span, seconds: int = 0, *, stream: int = 0, group: int = 0, **more: object) -> int:
        fields = {"name": "all-reduce sum", "bytes": 8, "dtype": "bf16", **more}
        return self.add("collective", span=span, moved=seconds, stream=stream, group=group, **fields)  # type: ignore[arg-type]

    def send(self, span: Span, peer: int, seconds: int = 0, **more: object) -> int:
        return self.message("send", span, peer, seconds, **more)

    def receive(self, span: Span, peer: int, seconds: int = 0, **more: object) -> int:
        return self.message("receive", span, peer, seconds, **more)

    def message(self, kind: str, span: Span, peer: int, seconds: int, **more: object) -> int:
        fields = {"bytes": 4, "dtype": "bf16", **more}
        return self.add(kind, kind, span=span, peer=peer, moved=seconds, **fields)

    def wait(self, *numbers: int, stream: int = 0, **more: object) -> int:
        return self.add("wait", "wait", stream=stream, of=numbers, **more)

    def join(self, stream: int, other: int) -> int:
        return self.add("join", "join", stream=stream, of=(other,))

    def stop(self, stream: int = 0) -> int:
        return self.add("stop", "item", stream=stream)

    def next_batch(self) -> int:
        self.batch += 1
        return self.batch


def partition(ranks: Sequence[Sequence[Call]], stage: Callable[[int], int] = lambda rank: 0) -> tuple[
    list[RankClass], list[RankTrace]
]:  # fmt: skip
    """Classes of ranks with equal calls and stages: a rank whose calls were changed is alone in its own."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank, calls in enumerate(ranks):
        alike.setdefault((stage(rank), tuple(calls)), []).append(rank)
    classes = [RankClass(tuple(own), f"stage {stage(own[0])}") for own in alike.values()]
    return classes, [trace_of(own[0], ranks[own[0]], stage(own[0])) for own in alike.values()]


def world_of(ranks: Sequence[Sequence[Call]], stage: Callable[[int], int] = lambda rank: 0) -> World:
    classes, traces = partition(ranks, stage)
    return refine(len(ranks), classes, traces)


def every_rank(ranks: Sequence[Sequence[Call]], stage: Callable[[int], int] = lambda rank: 0) -> World:
    """The same world with each rank a class of its own."""
    classes = [RankClass((rank,), f"stage {stage(rank)}") for rank in range(len(ranks))]
    return refine(len(ranks), classes, [trace_of(r, calls, stage(r)) for r, calls in enumerate(ranks)])


def renumbered(calls: Sequence[Call]) -> list[Call]:
    """After calls were dropped, doubled or moved: numbers in order again, waits still for the same calls."""
    number = {call.number: i for i, call in reversed(list(enumerate(calls)))}
    return [
        replace(call, number=i, of=tuple(number[n] for n in call.of if n in number) if call.kind == "wait" else call.of)
        for i, call in enumerate(calls)
    ]
