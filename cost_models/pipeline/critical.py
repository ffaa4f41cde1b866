"""What a schedule's step is made of: its critical path, as how often it runs each action of each stage.

The longest path through the actions is a sum of their durations, and any other choice of stages has that path too: so
the counts, times the durations of other stages, are a lower bound of the time that these take (a cutting plane of the
step's time, which is convex in the durations; Kelley 1960).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.pipeline.order import KINDS, orders
from cost_models.pipeline.schedule import ROUNDS, SPLIT, check

FORWARD, BACKWARD, INPUTS, WEIGHTS = range(len(KINDS))
NOBODY = -1
ENOUGH_ROUNDS = 3  # of which one is neither the first nor the last


@dataclass(frozen=True)
class CriticalPath:
    """step_s   from the first forward to the last backward
    counts   [3, v·d]: how often the path runs each stage's forward, its backward or (where that is split) its inputs'
             gradients, and its weights' gradients; step_s = Σ counts · durations
    """

    step_s: float
    counts: np.ndarray


@dataclass(frozen=True)
class Script:
    """The actions of one schedule as arrays, for as many choices of stages as are to be tried.

    Slot 0 … v·d·m-1 is full when a stage may run a microbatch's forward, the next v·d·m when it may run its backward;
    what nobody fills is full from the first.

    kinds, stages, waits, fills   [rank, action]; the kind of a split backward's parts is 1 and 2
    """

    count: int
    kinds: np.ndarray
    stages: np.ndarray
    waits: np.ndarray
    fills: np.ndarray

    def path(self, durations_s: np.ndarray) -> CriticalPath:
        """durations_s: [3, v·d], seconds of each kind of action, those of the message that it receives included."""
        line = self.line
        ends = line.ends_s(durations_s.ravel()[line.actions].tolist())
        return CriticalPath(max(ends), line.counts(ends).reshape(3, self.count))

    @cached_property
    def line(self) -> Line:
        """All actions one after another, each behind what it waits for."""
        many, fills = self.kinds.shape[1], self.fills.ravel().tolist()
        filled_by = {slot: number for number, slot in enumerate(fills) if slot != NOBODY}
        senders = [filled_by.get(slot, NOBODY) for slot in self.waits.ravel().tolist()]
        order: list[int] = []
        place, waiting = [NOBODY] * (len(senders) + 1), {}  # what nobody sends is there, in no place
        done, able = [0] * len(self.kinds), list(range(len(self.kinds)))
        while able:
            rank = able.pop()
            while done[rank] < many:
                number = rank * many + done[rank]
                if senders[number] != NOBODY and place[senders[number]] == NOBODY:
                    waiting[senders[number]] = rank
                    break
                place[number] = len(order)
                order.append(number)
                done[rank] += 1
                if number in waiting:
                    able.append(waiting.pop(number))
        assert len(order) == len(senders), "the schedule deadlocks"
        actions = (self.kinds * self.count + self.stages).ravel()[order]
        before = [place[number - 1] if number % many else NOBODY for number in order]
        last = [place[rank * many + many - 1] for rank in range(len(self.kinds))]
        return Line(actions, 3 * self.count, before, [place[senders[number]] for number in order], last)


@dataclass(frozen=True)
class Line:
    """Actions by their places in an order in which each is behind those that it waits for.

    actions  the number of each among ``many`` durations
    before   the place of the action before it on its rank, NOBODY for the first
    senders  the place of the one on another rank that it waits for, NOBODY where there is none
    last     the place of each rank's last
    """

    actions: np.ndarray
    many: int
    before: Sequence[int]
    senders: Sequence[int]
    last: Sequence[int]

    def ends_s(self, spent_s: Sequence[float]) -> list[float]:
        """When each is done, by how long each takes; one more at the end, of nobody's action."""
        ends = [0.0] * (len(spent_s) + 1)
        for place, (before, sender, seconds) in enumerate(zip(self.before, self.senders, spent_s, strict=True)):
            free, ready = ends[before], ends[sender]
            ends[place] = (ready if ready > free else free) + seconds
        return ends

    def steps_s(self, durations_s: np.ndarray) -> np.ndarray:
        """[choices] of [choices, many]: seconds of the step, of many choices of durations at once."""
        order, waves = self.waves
        spent_s, ends = durations_s.T[self.actions[order]], np.zeros((len(order) + 1, len(durations_s)))
        first = 0
        for before, senders in waves:
            last = first + len(before)
            np.maximum(ends[before], ends[senders], out=ends[first:last])
            ends[first:last] += spent_s[first:last]
            first = last
        return np.asarray(ends.max(axis=0))

    @cached_property
    def waves(self) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """(the actions in another order, by how many are before them at least; of those that have as many, the places
        in it of the ones before them and of their senders)."""
        depth = np.array(self.ends_s([1.0] * len(self.actions))[:-1])
        order = np.argsort(depth, kind="stable")
        place = np.full(len(order) + 1, len(order))  # nobody's is the last
        place[order] = np.arange(len(order))
        cuts = np.flatnonzero(np.diff(depth[order])) + 1
        before, senders = (np.split(place[np.array(of)[order]], cuts) for of in (self.before, self.senders))
        return order, list(zip(before, senders, strict=True))

    def counts(self, ends_s: Sequence[float]) -> np.ndarray:
        """[many]: how often the longest path runs each action, from its last one back."""
        place, path = max(self.last, key=ends_s.__getitem__), []
        while place != NOBODY:
            path.append(place)
            before, sender = self.before[place], self.senders[place]
            place = sender if ends_s[sender] > ends_s[before] else before
        return np.bincount(self.actions[path], minlength=self.many)


def script(schedule: str, ranks: int, microbatches: int, virtual_stages: int = 1) -> Script:
    """The script of any schedule with a flush whose stage s is on rank s mod d."""
    check(schedule, ranks, microbatches, virtual_stages)
    rows = orders(schedule, ranks, microbatches, virtual_stages)
    stage, kind, microbatch = np.moveaxis(rows, 2, 0)
    count, last = virtual_stages * ranks, virtual_stages * ranks - 1
    slots, forward, weights = count * microbatches, kind == FORWARD, kind == WEIGHTS
    own = stage * microbatches + microbatch
    waits = np.where(weights, 2 * slots, np.where(forward, own, slots + own))
    onward = np.where(forward, np.where(stage == last, slots + own, own + microbatches), slots + own - microbatches)
    fills = np.where(weights | (~forward & (stage == 0)), NOBODY, onward)
    kinds = np.where(forward, 0, np.where(weights, 2, 1))
    assert (schedule in SPLIT) == bool(weights.any())
    return Script(count, kinds, stage, waits, fills)


def held_chunks(schedule: str, ranks: int, microbatches: int, virtual_stages: int = 1) -> tuple[np.ndarray, ...]:
    """For each rank [moments, v]: the microbatches whose activations it holds on each of its stages at once, of all
    moments of the step those that no other exceeds on every stage.

    Held from a stage's forward to its backward, where that is split to the pass for the weights' gradients. A rank's
    row sums are at most ``in_flight``.
    """
    if microbatches > ENOUGH_ROUNDS * ranks and microbatches % ranks == 0 and schedule in ROUNDS:
        microbatches = ENOUGH_ROUNDS * ranks  # the rounds between the first and the last are alike
    rows = orders(schedule, ranks, microbatches, virtual_stages)
    ends = WEIGHTS if schedule in SPLIT else BACKWARD
    found = []
    for rank in range(ranks):
        stage, kind = rows[rank, :, 0] // ranks, rows[rank, :, 1]
        change = (kind == FORWARD) * 1 - (kind == ends)
        held = np.cumsum(np.where(stage[:, None] == np.arange(virtual_stages), change[:, None], 0), axis=0)
        found.append(undominated(np.unique(held, axis=0)))
    return tuple(found)


def undominated(rows: np.ndarray) -> np.ndarray:
    """Of distinct rows those than which no other is as large everywhere, the largest sums first."""
    covered = (rows[:, None, :] <= rows[None, :, :]).all(axis=2).sum(axis=1) > 1
    kept = rows[~covered]
    return kept[np.argsort(-kept.sum(axis=1), kind="stable")]
