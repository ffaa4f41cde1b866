"""Messages between stages: every schedule's, with sends that wait for their receives, as gloo and NCCL have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.runtime.pipeline.order import reads_from, sends_to
from cost_models.pipeline.order import Action, actions, most_sending

SPENT_S = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
MESSAGE_S = 0.2
ENDLESS = 10**6


@st.composite
def settings_of(draw) -> tuple[str, int, int, int]:
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
    """Ranks that send and receive: a message begins when both sides have posted it, and a wait ends with it.

    posted, sent  when the receive and the send of a message were posted, by the action that reads it
    """

    ranks: list[Rank]
    stages: int
    most: int
    posted: dict[Action, float] = field(default_factory=dict)
    sent: dict[Action, float] = field(default_factory=dict)

    def came_s(self, message: Action) -> float | None:
        both = self.posted.get(message), self.sent.get(message)
        return None if None in both else max(both) + MESSAGE_S

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
            rank.now_s += SPENT_S[action.kind]
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


def run(setting: tuple[str, int, int, int], most: int) -> tuple[float | None, World]:
    _, ranks, _, several = setting
    world = World([Rank(order) for order in orders(*setting)], ranks * several, most)
    return world.run(), world


@given(settings_of())
def test_bounding_what_is_being_sent_neither_deadlocks_nor_costs_time(setting) -> None:
    most = most_sending(*setting)
    found_s, world = run(setting, most)
    assert found_s is not None, "it deadlocks"
    assert found_s == pytest.approx(run(setting, ENDLESS)[0])
    assert max(rank.most_alive for rank in world.ranks) <= most


@pytest.mark.parametrize("virtual", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [*range(1, 8), 8, 12])
@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
def test_so_with_rounds_of_every_size(schedule: str, microbatches: int, virtual: int) -> None:
    setting = (schedule, 4, microbatches, virtual)
    assert run(setting, most_sending(*setting))[0] == pytest.approx(run(setting, ENDLESS)[0])


def test_a_split_backward_with_several_stages_needs_more_than_one() -> None:
    assert run(("zero-bubble", 4, 8, 2), 1)[0] is None
    assert most_sending("interleaved", 4, 8, 2) == most_sending("zero-bubble", 4, 8, 1) == 1


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
