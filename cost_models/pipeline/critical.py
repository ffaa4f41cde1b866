"""What a schedule's step is made of: its critical path, as how often it runs each action and message of each stage.

The longest path through actions and messages is a sum of their durations, and any other choice of stages has that path
too: so the counts, times the durations of other stages, are a lower bound of the time that these take (a cutting plane
of the step's time, which is convex in the durations; Kelley 1960). Messages begin and end as in ``timeline``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from cost_models.pipeline.order import KINDS, orders
from cost_models.pipeline.schedule import ROUNDS, SPLIT, check

FORWARD, BACKWARD, INPUTS, WEIGHTS = range(len(KINDS))
DURATIONS = 5
"""Rows of a stage's seconds: its forward, its backward (where that is split its inputs' gradients), its weights'
gradients, the message that its forward reads, the message that its backward reads."""
SENT_FORWARD, SENT_BACK = 3, 4
NOBODY = -1
ENOUGH_ROUNDS = 3  # of which one is neither the first nor the last


@dataclass(frozen=True)
class CriticalPath:
    """step_s   from the first forward to the last backward
    counts   [DURATIONS, v·d]: how often the path runs each action and message of each stage; step_s = Σ counts ·
             durations
    """

    step_s: float
    counts: np.ndarray


@dataclass(frozen=True)
class Script:
    """The actions of one schedule as arrays, for as many choices of stages as are to be tried.

    Slot 0 … v·d·m-1 is full when a stage may run a microbatch's forward, the next v·d·m when it may run its backward;
    what nobody fills is full from the first.

    kinds, stages, waits, fills   [rank, action]; the kind of a split backward's parts is 1 and 2
    ahead                         as of ``timeline.simulate``
    """

    count: int
    kinds: np.ndarray
    stages: np.ndarray
    waits: np.ndarray
    fills: np.ndarray
    ahead: int

    def path(self, durations_s: np.ndarray) -> CriticalPath:
        """durations_s: [DURATIONS, v·d] seconds; of a message that nobody reads nothing."""
        line, spent_s = self.line, [*durations_s.ravel().tolist(), 0.0]
        ends, came = line.ends_s(*(pick(spent_s) for pick in line.picks))
        return CriticalPath(max(ends), line.counts(ends, came))

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
        return self.ordered(order, place, senders)

    def ordered(self, order: Sequence[int], place: Sequence[int], senders: Sequence[int]) -> Line:
        """The actions in an order, with what each waits for.

        place    of each action in it
        senders  of each action the one that fills its slot, by number
        """
        ranks, many = self.kinds.shape
        rows = np.where(self.kinds == FORWARD, SENT_FORWARD, SENT_BACK)
        read = np.where(self.kinds == FORWARD, self.stages > 0, (self.kinds == 1) & (self.stages < self.count - 1))
        read &= ranks > 1
        follows = np.zeros_like(read)  # over the wire of the message that the action before reads
        follows[:, 1:] = read[:, 1:] & read[:, :-1] & (rows[:, 1:] == rows[:, :-1])
        actions, messages = self.kinds * self.count + self.stages, rows * self.count + self.stages
        reads, after, back = read.ravel().tolist(), follows.ravel().tolist(), 1 + self.ahead

        def places(numbers: Iterable[int]) -> list[int]:
            return [NOBODY if number == NOBODY else place[number] for number in numbers]

        return Line(
            actions=actions.ravel()[order],
            messages=np.where(read, messages, DURATIONS * self.count).ravel()[order],
            many=DURATIONS * self.count,
            before=places(n - 1 if n % many else NOBODY for n in order),
            senders=places(senders[n] for n in order),
            posted=places(n - back if reads[n] and n % many >= back else NOBODY for n in order),
            queued=places(n - 1 if after[n] else NOBODY for n in order),
            last=places(rank * many + many - 1 for rank in range(ranks)),
        )


@dataclass(frozen=True)
class Line:
    """Actions by their places in an order in which each is behind those that it waits for.

    actions   the number of each among ``many`` durations
    messages  that of the message that it reads; ``many`` where it reads none
    before    the place of the action before it on its rank, NOBODY for the first
    senders   the place of the one that makes what it reads, NOBODY where there is none
    posted    the place of the action with whose end its receive is posted
    queued    the place of the action that reads the message before its own over the same wire, where that is ``before``
    last      the place of each rank's last
    """

    actions: np.ndarray
    messages: np.ndarray
    many: int
    before: Sequence[int]
    senders: Sequence[int]
    posted: Sequence[int]
    queued: Sequence[int]
    last: Sequence[int]

    @property
    def waits(self) -> tuple[Sequence[int], ...]:
        return self.before, self.senders, self.posted, self.queued

    @cached_property
    def rows(self) -> list[tuple[int, ...]]:
        """The place of each action, and its ``waits``."""
        return list(zip(range(len(self.actions)), *self.waits, strict=True))

    @cached_property
    def numbers(self) -> tuple[list[int], list[int]]:
        """``actions`` and ``messages``, to be looked up one by one."""
        return self.actions.tolist(), self.messages.tolist()

    @cached_property
    def picks(self) -> tuple[itemgetter, itemgetter]:
        """Of durations those of the actions, and of their messages."""
        actions, messages = self.numbers
        return itemgetter(*actions), itemgetter(*messages)

    def ends_s(self, spent_s: Sequence[float], sent_s: Sequence[float]) -> tuple[list[float], list[float]]:
        """(when each is done, when what it reads has come), by how long each and its message take; one more at the
        end, of nobody's action."""
        ends, came = [0.0] * (len(spent_s) + 1), [0.0] * (len(spent_s) + 1)
        for (place, before, sender, posted, queued), seconds, message_s in zip(self.rows, spent_s, sent_s, strict=True):
            ready, free, other = ends[sender], ends[before], ends[posted]
            if other > ready:
                ready = other
            if came[queued] > ready:
                ready = came[queued]
            came[place] = ready = ready + message_s
            ends[place] = (ready if ready > free else free) + seconds
        return ends, came

    def runs(self, durations_s: np.ndarray) -> ManyRuns:
        """The schedule run on many choices of durations at once: [choices, many] seconds."""
        order, _, waves = self.waves
        spent = np.concatenate([durations_s.T, np.zeros((1, len(durations_s)))])
        spent_s, sent_s = spent[self.actions[order]], spent[self.messages[order]]
        ends, came = times = np.zeros((2, len(order) + 1, len(durations_s)))
        both, first = times.reshape(-1, len(durations_s)), 0
        for waits in waves:
            last = first + waits.shape[1]
            now, ready, known = ends[first:last], came[first:last], both.take(waits, axis=0)
            np.maximum(known[1], known[2], out=ready)
            if len(known) > 3:
                np.maximum(ready, known[3], out=ready)
            ready += sent_s[first:last]
            np.maximum(known[0], ready, out=now)
            now += spent_s[first:last]
            first = last
        return ManyRuns(self, ends, came)

    @cached_property
    def waves(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """(the actions in another order, by how many are before them at least; the place of each in it, and of nobody's
        the last; of those that have as many before them [4, actions], the places in it of those that they wait for, as
        in ``waits``; of ``queued`` they begin behind all places, and are left out where none waits for one)."""
        depth = np.array(self.ends_s([1.0] * len(self.actions), [0.0] * len(self.actions))[0][:-1])
        order = np.argsort(depth, kind="stable")
        place = np.full(len(order) + 1, len(order))  # nobody's is the last
        place[order] = np.arange(len(order))
        cuts = np.flatnonzero(np.diff(depth[order])) + 1
        waits = np.stack([place[np.array(of)[order]] for of in self.waits])
        waits[-1] += len(place)
        nobody = 2 * len(place) - 1
        waves = [wave if (wave[-1] != nobody).any() else wave[:-1] for wave in np.split(waits, cuts, axis=1)]
        return order, place, waves

    def counts(self, ends_s: Sequence[float], came_s: Sequence[float]) -> np.ndarray:
        """[DURATIONS, v·d]: how often the longest path runs each action and each message, from its last action back."""
        place, path, (actions, messages) = max(self.last, key=ends_s.__getitem__), list[int](), self.numbers
        while place != NOBODY:
            path.append(actions[place])
            if came_s[place] <= ends_s[self.before[place]]:
                place = self.before[place]
                continue
            while place != NOBODY:
                path.append(messages[place])
                sender, posted, queued = self.senders[place], self.posted[place], self.queued[place]
                if came_s[queued] > max(ends_s[sender], ends_s[posted]):
                    place = queued
                    continue
                place = sender if ends_s[sender] >= ends_s[posted] else posted
                break
        return np.bincount(path, minlength=self.many + 1)[: self.many].reshape(DURATIONS, -1)


@dataclass(frozen=True)
class ManyRuns:
    """A schedule run on many choices of durations.

    ends_s, came_s  [actions + 1, choices], in the order of ``Line.waves``: when each is done, when what it reads came
    """

    line: Line
    ends_s: np.ndarray
    came_s: np.ndarray

    @cached_property
    def steps_s(self) -> np.ndarray:
        """[choices]: seconds of the step."""
        return np.asarray(self.ends_s.max(axis=0))

    def path(self, number: int) -> CriticalPath:
        """As ``Script.path`` has it of one choice."""
        place = self.line.waves[1]
        ends, came = (times[place, number].tolist() for times in (self.ends_s, self.came_s))
        return CriticalPath(float(self.steps_s[number]), self.line.counts(ends, came))


def script(schedule: str, ranks: int, microbatches: int, virtual_stages: int = 1, ahead: int = 1) -> Script:
    """The script of any schedule with a flush whose stage s is on rank s mod d.

    ahead  as of ``timeline.simulate``
    """
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
    return Script(count, kinds, stage, waits, fills, ahead)


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
        total = np.cumsum(change)
        peaks = (total > np.append(total[1:], 0)) & (change >= 0)  # at others no more is held than before, or after
        found.append(undominated(np.unique(held[peaks], axis=0)))
    return tuple(found)


def undominated(rows: np.ndarray) -> np.ndarray:
    """Of distinct rows those than which no other is as large everywhere, the largest sums first."""
    covered = (rows[:, None, :] <= rows[None, :, :]).all(axis=2).sum(axis=1) > 1
    kept = rows[~covered]
    return kept[np.argsort(-kept.sum(axis=1), kind="stable")]
