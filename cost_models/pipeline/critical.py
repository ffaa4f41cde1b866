"""What a schedule's step is made of: its critical path, as how often it runs each action of each stage.

The longest path through the actions is a sum of their durations, and any other choice of stages has that path too: so
the counts, times the durations of other stages, are a lower bound of the time that these take (a cutting plane of the
step's time, which is convex in the durations; Kelley 1960).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.pipeline.order import KINDS, orders
from cost_models.pipeline.schedule import ROUNDS, SPLIT, check

FORWARD, BACKWARD, INPUTS, WEIGHTS = range(len(KINDS))
NOBODY = -1
ENOUGH_ROUNDS = 3  # of which one is neither the first nor the last
Filled = dict[int, tuple[int, int]]  # slot: (rank, place) of the action that filled it


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
        spent = durations_s[self.kinds, self.stages].tolist()
        return _trace(self, *_run(self, spent))


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


def _run(script: Script, spent_s: Sequence[Sequence[float]]) -> tuple[list[list[float]], list[list[bool]], Filled]:
    """(ends of each rank's actions; whether each waited for another rank's; who filled each slot)."""
    waits, fills = script.waits.tolist(), script.fills.tolist()
    produced = {slot for row in fills for slot in row}
    inbox = dict.fromkeys({slot for row in waits for slot in row} - produced, 0.0)
    filled_by: Filled = {}
    ends: list[list[float]] = [[] for _ in waits]
    late: list[list[bool]] = [[] for _ in waits]
    missing: dict[int, int] = {}
    able = list(range(len(waits)))
    while able:
        rank = able.pop()
        done, held = ends[rank], late[rank]
        now = done[-1] if done else 0.0
        wanted, given, times = waits[rank], fills[rank], spent_s[rank]
        for place in range(len(done), len(wanted)):
            ready = inbox.get(wanted[place])
            if ready is None:
                missing[wanted[place]] = rank
                break
            held.append(ready > now)
            now = (ready if ready > now else now) + times[place]
            done.append(now)
            slot = given[place]
            if slot != NOBODY:
                inbox[slot] = now
                filled_by[slot] = rank, place
                if slot in missing:
                    able.append(missing.pop(slot))
    assert all(len(done) == len(row) for done, row in zip(ends, waits, strict=True)), "the schedule deadlocks"
    return ends, late, filled_by


def _trace(
    script: Script, ends: Sequence[Sequence[float]], late: Sequence[Sequence[bool]], filled_by: Filled
) -> CriticalPath:
    """The longest path, from its last action back."""
    counts = np.zeros((3, script.count), dtype=int)
    kinds, stages, waits = script.kinds.tolist(), script.stages.tolist(), script.waits.tolist()
    rank = max(range(len(ends)), key=lambda r: ends[r][-1])
    place, step_s = len(ends[rank]) - 1, ends[rank][-1]
    while place >= 0:
        counts[kinds[rank][place], stages[rank][place]] += 1
        if late[rank][place]:
            rank, place = filled_by[waits[rank][place]]
        else:
            place -= 1
    return CriticalPath(step_s, counts)


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
