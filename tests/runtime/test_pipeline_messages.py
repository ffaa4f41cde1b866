"""Messages between stages: every schedule's, with sends that wait for their receives, as gloo and NCCL have them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.runtime.engine import PipelineEngine
from autoplan.runtime.pipeline.order import reads_from, sends_to
from autoplan.runtime.pipeline.stage import PipelineStage
from cost_models.pipeline import ROUNDS, simulate
from cost_models.pipeline.order import Action, actions, most_sending

ENDLESS = 10**6
Setting = tuple[str, int, int, int]


@st.composite
def settings_of(draw) -> Setting:
    """(schedule, ranks, microbatches, stages on a rank) that the schedule can run."""
    schedule, ranks = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"])), draw(st.integers(2, 8))
    if schedule in ("gpipe", "1f1b"):
        return schedule, ranks, draw(st.integers(1, 4 * ranks)), 1
    rounds = draw(st.integers(1, 4))
    each = ranks if rounds > 1 else draw(st.integers(1, 2 * ranks - 1))
    return schedule, ranks, rounds * each, draw(st.integers(1 if schedule == "zero-bubble" else 2, 4))


def orders(schedule: str, ranks: int, microbatches: int, several: int) -> list[tuple[Action, ...]]:
    virtual = None if schedule in ("gpipe", "1f1b") else several
    return [actions(schedule, rank, ranks, microbatches, virtual) for rank in range(ranks)]


@dataclass(frozen=True)
class Seconds:
    """Of each stage's actions, by kind, and of a message over each border."""

    actions: dict[str, list[float]]
    messages: list[float]

    @staticmethod
    def of(setting: Setting, seed: int, spread: float, message: float) -> Seconds:
        """Of stages about as long, messages about so long."""
        rng = random.Random(seed)
        units = [1 + spread * rng.random() for _ in range(setting[1] * setting[3])]
        times = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
        return Seconds(
            {kind: [one * unit for unit in units] for kind, one in times.items()},
            [message * (1 + spread * rng.random()) for _ in units[1:]],
        )


@dataclass
class Rank:
    """One rank as ``PipelineEngine.run`` goes through its order."""

    order: Sequence[Action]
    done: int = 0
    now_s: float = 0.0
    computed: bool = False
    sending: deque[Action] = field(default_factory=deque)
    most_alive: int = 0


@dataclass
class World:
    """Ranks that send and receive: a message begins when both sides have posted it and what was posted before it over
    the same wire has come, and a wait ends with it.

    queued        the message that is posted before each over its wire
    posted, sent  when the receive and the send of a message were posted, by the action that reads it
    """

    ranks: list[Rank]
    stages: int
    most: int
    seconds: Seconds
    queued: dict[Action, Action]
    posted: dict[Action, float] = field(default_factory=dict)
    sent: dict[Action, float] = field(default_factory=dict)
    come: dict[Action, float] = field(default_factory=dict)

    def came_s(self, message: Action) -> float | None:
        if message in self.come:
            return self.come[message]
        both, before = (self.posted.get(message), self.sent.get(message)), self.queued.get(message)
        before_s = self.came_s(before) if before else 0.0
        if None in both or before_s is None:
            return None
        border = min(message.stage, reads_from(message, self.stages))
        self.come[message] = max(*both, before_s) + self.seconds.messages[border]
        return self.come[message]

    def run(self) -> float | None:
        """Seconds of the step; None where nobody can go on."""
        moved = True
        while moved:
            moved = any([self.goes_on(rank) for rank in self.ranks])
        return max(r.now_s for r in self.ranks) if all(r.done == len(r.order) for r in self.ranks) else None

    def goes_on(self, rank: Rank) -> bool:
        before = rank.done, rank.computed
        while rank.done < len(rank.order) and self.acts(rank, rank.order[rank.done]):
            rank.done += 1
            rank.computed = False
        return before != (rank.done, rank.computed)

    def acts(self, rank: Rank, action: Action) -> bool:
        """Whether it comes to the action's end; if not, it stands at a wait."""
        for each in rank.order[rank.done : rank.done + 2]:
            if reads_from(each, self.stages) is not None:
                self.posted.setdefault(each, rank.now_s)
        if not rank.computed:
            if reads_from(action, self.stages) is not None:
                came_s = self.came_s(action)
                if came_s is None:
                    return False
                rank.now_s = max(rank.now_s, came_s)
            rank.now_s += self.seconds.actions[action.kind][action.stage]
            rank.computed = True
        taker = sends_to(action, self.stages)
        if taker is None:
            return True
        while len(rank.sending) > self.most - 1:
            ended_s = self.came_s(rank.sending[0])
            if ended_s is None:
                return False
            rank.now_s = max(rank.now_s, ended_s)
            rank.sending.popleft()
        message = Action(taker, action.kind, action.microbatch)
        self.sent[message] = rank.now_s
        rank.sending.append(message)
        rank.most_alive = max(rank.most_alive, len(rank.sending))
        return True


def run(setting: Setting, most: int, seconds: Seconds | None = None) -> tuple[float | None, World]:
    _, ranks, _, several = setting
    stages, queued = ranks * several, {}
    for order in orders(*setting):
        for way in ("F", "BI"):
            reading = [a for a in order if a.kind in way and reads_from(a, stages) is not None]
            queued |= {b: a for a, b in pairwise(reading)}
    seconds = seconds or Seconds.of(setting, 0, 0.0, 0.2)
    world = World([Rank(order) for order in orders(*setting)], stages, most, seconds, queued)
    return world.run(), world


@given(settings_of(), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([0.05, 0.3, 1.5]))
def test_bounding_what_is_being_sent_neither_deadlocks_nor_costs_time(setting, seed, spread, message) -> None:
    """And the step is the timeline's, by which it is priced."""
    schedule, _, microbatches, several = setting
    most, seconds = most_sending(*setting), Seconds.of(setting, seed, spread, message)
    found_s, world = run(setting, most, seconds)
    assert found_s is not None, "it deadlocks"
    assert found_s == pytest.approx(run(setting, ENDLESS, seconds)[0])
    assert max(rank.most_alive for rank in world.ranks) <= most
    weights = seconds.actions["W"] if schedule == "zero-bubble" else None
    virtual = several if schedule in ROUNDS else None
    times = seconds.actions["F"], seconds.actions["B"], seconds.messages, microbatches
    assert found_s == pytest.approx(simulate(schedule, *times, weight_s=weights, virtual_stages=virtual).step_s)


@pytest.mark.parametrize("virtual", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [*range(1, 8), 8, 12])
@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
def test_so_with_rounds_of_every_size(schedule: str, microbatches: int, virtual: int) -> None:
    setting = (schedule, 4, microbatches, virtual)
    assert run(setting, most_sending(*setting))[0] == pytest.approx(run(setting, ENDLESS)[0])


def test_a_split_backward_with_several_stages_needs_more_than_one() -> None:
    assert run(("zero-bubble", 4, 8, 2), 1)[0] is None
    assert most_sending("interleaved", 4, 8, 2) == most_sending("zero-bubble", 4, 8, 1) == 2


@given(settings_of())
def test_messages_are_read_in_the_order_in_which_they_are_sent(setting) -> None:
    """Between two ranks, over one group: that is what lets receives be posted in the order of their use."""
    _, ranks, _, several = setting
    stages, sent, read = ranks * several, {}, {}
    for order in orders(*setting):
        for action in order:
            taker, giver = sends_to(action, stages), reads_from(action, stages)
            if taker is not None:
                edge = action.stage % ranks, taker % ranks, taker > action.stage, max(taker, action.stage) % ranks == 0
                sent.setdefault(edge, []).append(Action(taker, action.kind, action.microbatch))
            if giver is not None:
                edge = giver % ranks, action.stage % ranks, action.stage > giver, max(giver, action.stage) % ranks == 0
                read.setdefault(edge, []).append(action)
    assert sent == read


def test_reductions_of_one_stage_are_dealt_out_apart() -> None:
    """fully_shard has compute wait between two of one stage. The first stage's sums are waited for once the second's
    are all sent."""
    engine, done, finished = object.__new__(PipelineEngine), list[str](), list[str]()
    stages = {name: cast(PipelineStage, SimpleNamespace(finish=partial(finished.append, name))) for name in "ab"}
    engine.sent = None
    engine.unreduced = deque(
        (stage, deque(partial(done.append, f"{name}{unit}") for unit in range(3))) for name, stage in stages.items()
    )
    counts = []
    for left in (3, 2, 1, 0):
        before = len(done)
        engine.reduce(left)
        counts.append(len(done) - before)
    assert counts == [2, 2, 2, 0]
    assert done == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert finished == ["a"] and engine.sent is stages["b"]
