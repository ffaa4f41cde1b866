"""Correct programs of pp x dp x tp ranks, with collectives, messages and waits, for hypothesis; and their times by
relaxation: every rank walks its calls with the others' times as guessed so far, until no guess changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from autoplan.rehearsal.records import HOST, Call, Span
from autoplan.rehearsal.world.rank_equivalence import group_of
from tests.support.rehearsed import Program

LOSS_LINE, NORM_LINE = "program.py:90", "runtime/optim/clip.py:34"


@dataclass(frozen=True)
class Job:
    """What a world is made from; seconds are drawn for each stage."""

    pp: int
    dp: int
    tp: int
    microbatches: int
    layers: int
    batched: bool
    gradient_stream: int
    seconds: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return self.pp * self.dp * self.tp

    def stage(self, rank: int) -> int:
        return rank // (self.dp * self.tp)

    @property
    def spans(self) -> dict[str, Span]:
        inner = self.dp * self.tp
        found = {"tp": (1, self.tp), "dp": (self.tp, self.dp), "pp": (inner, self.pp), "world": (1, self.ranks)}
        return {name: (axis,) for name, axis in found.items() if axis[1] > 1}

    def programs(self) -> list[list[Call]]:
        return [self.program(rank) for rank in range(self.ranks)]

    def program(self, rank: int) -> list[Call]:
        """GPipe: sums over tp in every layer, gradients over dp as they come, a norm over the world."""
        p, stage, spans = Program(), self.stage(rank), self.spans
        price = self.seconds[stage % len(self.seconds)]

        def layer(during: str, line: int) -> None:
            p.compute(price, during=during, line=f"program.py:{line}")
            if "tp" in spans:
                gathered = p.collective(spans["tp"], 1, name="all-gather", during=during, line=f"program.py:{line + 1}")
                p.compute(1, during=during, line=f"program.py:{line + 2}")
                p.wait(gathered, during=during, line=f"program.py:{line + 3}")
                summed = p.collective(spans["tp"], 2, bytes=16, during=during, line=f"program.py:{line + 4}")
                p.wait(summed, during=during, line=f"program.py:{line + 4}")

        def message(kind: str, way: int, during: str, line: int) -> None:
            if 0 <= stage + way < self.pp:
                batch = p.next_batch() if self.batched else 0
                offset = way * self.dp * self.tp
                number = p.message(kind, spans["pp"], offset, 1, batch=batch, during=during, line=f"engine.py:{line}")
                p.wait(number, during=during, line=f"engine.py:{line + 1}")

        for i in range(self.microbatches):
            during = f"forward {i} of stage {stage}"
            message("receive", -1, during, 10)
            for _ in range(self.layers):
                layer(during, 20)
            message("send", 1, during, 12)
        gradients = []
        for i in range(self.microbatches):
            during = f"backward {i} of stage {stage}"
            message("receive", 1, during, 14)
            for number in range(self.layers):
                layer(during, 40)
                if "dp" in spans and i == self.microbatches - 1:
                    more = {"bytes": 32 + number, "dtype": "float32", "during": during, "line": "buckets.py:93"}
                    p.join(self.gradient_stream, 0)
                    gradients.append(p.collective(spans["dp"], 3, stream=self.gradient_stream, **more))
            message("send", -1, during, 16)
        if gradients:
            p.wait(*gradients, during="gradient sums", line="buckets.py:110")
        for name, line in (("pp", LOSS_LINE), ("world", NORM_LINE)):
            if name in spans:
                number = p.collective(spans[name], 1, bytes=4, dtype="float32", during="update", line=line)
                p.wait(number, stream=HOST if name == "world" else 0, during="update", line=line)
        p.stop()
        p.compute(price, during="update", line="runtime/optim/updates.py:65")
        return p.calls


jobs = st.builds(
    Job,
    pp=st.integers(1, 3), dp=st.integers(1, 3), tp=st.integers(1, 3), microbatches=st.integers(1, 3),
    layers=st.integers(1, 2), batched=st.booleans(), gradient_stream=st.integers(0, 1),
    seconds=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
)  # fmt: skip


@dataclass
class Relaxed:
    """Times of every call of every rank, guessed from below; right once a pass changes nothing."""

    ranks: Sequence[Sequence[Call]]
    eager_bytes: int | None = None
    arrived: dict[tuple, float] = field(default_factory=lambda: defaultdict(float))
    ends: list[list[float]] = field(default_factory=list)

    def step(self) -> float:
        last: object = None
        for _ in range(2000):
            self.ends = [self.walk(rank) for rank in range(len(self.ranks))]
            now = (dict(self.arrived), self.ends)
            if now == last:
                return max((end for own in self.ends for end in own), default=0.0)
            last = (dict(self.arrived), self.ends)
        raise AssertionError("the times grow without end: a deadlock")

    def walk(self, rank: int) -> list[float]:
        at: dict[int, float] = defaultdict(float)  # streams, the host among them
        free: dict[tuple, float] = defaultdict(float)
        count: dict[tuple, int] = defaultdict(int)
        done: dict[int, float] = {}
        ends = []
        for call in self.ranks[rank]:
            reached = max(at[call.stream], at[HOST])
            end = reached
            if call.kind == "operator":
                end = at[call.stream] = reached + call.moved
            elif call.kind == "wait":
                end = at[call.stream] = max([reached, *(done[n] for n in call.of)])
            elif call.kind == "join":
                end = at[call.stream] = max([reached, *(at[s] for s in call.of)])
            elif call.kind == "stop":
                end = at[HOST] = reached
            else:
                end = done[call.number] = self.crossing(rank, call, reached, free, count)
            ends.append(end)
        return ends

    def crossing(self, rank: int, call: Call, reached: float, free: dict, count: dict) -> float:
        """Batches hold one message here, or none."""
        if call.kind == "collective":
            queue: tuple = (call.span, call.group)
            members = tuple(group_of(rank, call.span).tolist())
            meeting = [("collective", queue, m, count[queue]) for m in members]
            own, others = ("collective", queue, rank, count[queue]), meeting
        else:
            queue = (call.span, call.group, () if call.batch else call.peer)
            way = (call.kind, call.peer, bool(call.batch))
            queue_count = (*queue, *way)
            peer, back = rank + call.peer, "receive" if call.kind == "send" else "send"
            own = (call.kind, call.span, call.group, rank, peer, bool(call.batch), count[queue_count])
            others = [own, (back, call.span, call.group, peer, rank, bool(call.batch), count[queue_count])]
        count[queue if call.kind == "collective" else queue_count] += 1
        self.arrived[own] = max(reached, free[queue])
        start = max(self.arrived[other] for other in others)
        end = start + call.moved
        if call.kind != "collective" and self.eager_bytes is not None and call.bytes <= self.eager_bytes:
            sent = self.arrived[own if call.kind == "send" else others[1]] + call.moved
            end = sent if call.kind == "send" else max(self.arrived[own], sent)
        free[queue] = end
        return end
