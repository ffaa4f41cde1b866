"""Schedules with several stages (chunks) on a rank, or with a split backward: what the search asks of them.

Stage k of v·d is on rank k mod d. Seconds are of one microbatch on one stage.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.pipeline import (
    AHEAD,
    DURATIONS,
    ROUNDS,
    SPLIT,
    Action,
    CriticalPath,
    Script,
    actions,
    held_chunks,
    script,
)
from cost_models.pipeline.critical import SENT_BACK, SENT_FORWARD, ManyRuns
from cost_models.pipeline.schedule import round_size
from cost_models.pipeline.shared import Sharing

__all__ = [
    "ACCUMULATING",
    "REDUCED",
    "SENDING",
    "SENT_BACK",
    "SENT_FORWARD",
    "WAITING",
    "Action",
    "CriticalPath",
    "InterleavedSchedule",
    "ManyRuns",
    "actions",
    "chunk_rounds",
    "deals_rounds",
    "in_one_round",
    "is_interleaved",
    "least_held",
    "least_interleaved_slots",
    "rank_paths",
    "split_backward",
    "splits",
]  # fmt: skip

WAITING, REDUCED, ACCUMULATING, SENDING = range(4)
"""What stands of a stage's gradients: nothing before its first backward, all of them until its last one, then what its
optimizer reads; and both at once while they are on their way."""
TILTS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)  # of the weights over ranks in ``least_interleaved_slots``


@dataclass(frozen=True)
class InterleavedSchedule:
    """One schedule; each part of it is drawn when it is first asked for.

    ahead  as of ``step.receives_ahead``
    turns  whether a stage's gradients stand from its first backward, and are sent in its last one
    """

    schedule: str
    ranks: int
    microbatches: int
    virtual_stages: int
    ahead: int = AHEAD
    turns: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.ranks, self.microbatches, self.virtual_stages

    @cached_property
    def script(self) -> Script:
        """Its actions."""
        return script(self.schedule, *self.sizes, self.ahead)

    @cached_property
    def held(self) -> tuple[np.ndarray, ...]:
        """For each rank [moments, v]: the microbatches that it holds on each of its stages."""
        held = held_chunks(self.schedule, *self.sizes)
        return tuple((self.chunk <= self.acting) * rows for rows in held) if self.in_turn else held

    @cached_property
    def standing(self) -> tuple[np.ndarray, ...]:
        """For each rank [moments, v]: what stands then of each stage's gradients."""
        if not self.in_turn:
            return tuple(np.full_like(rows, ACCUMULATING) for rows in self.held)
        turn = np.where(self.chunk > self.acting, REDUCED, ACCUMULATING)
        return (np.where(self.chunk < self.acting, WAITING, turn),) * self.ranks

    @cached_property
    def emptied(self) -> np.ndarray:
        """[v]: the same with nothing in flight, when most does."""
        return np.where(self.in_turn & (self.chunk > 0), REDUCED, SENDING)

    @property
    def in_turn(self) -> bool:
        return self.turns and in_one_round(self.schedule, self.ranks, self.microbatches)

    @property
    def chunk(self) -> np.ndarray:
        return np.arange(self.virtual_stages)

    @property
    def acting(self) -> np.ndarray:
        """[v, 1]: the stage that is at its backward, of each moment; the last one first."""
        return self.chunk[::-1, None]

    @cached_property
    def paths(self) -> np.ndarray:
        """[paths, DURATIONS, v·d]: how often paths through it run each stage's actions and messages."""
        ranks, rows = self.ranks, rank_paths(*self.sizes)
        # through the first stages, and through the last
        chosen = list(dict.fromkeys([*range(ranks), *range(len(rows) - ranks, len(rows))]))
        paths = np.zeros((len(chosen), DURATIONS, len(rows)))
        paths[:, :2] = rows[chosen, None]
        turning = np.array(chosen)[:, None]                        # the stages at which paths turn back
        if splits(self.schedule):
            paths, turning = np.zeros((1, DURATIONS, len(rows))), np.array([[len(rows) - 1]])
            paths[:, :2] = 1.0  # one microbatch there and back
            paths[0, 1, 0] = 0.0
        stage = np.arange(len(rows))
        paths[:, SENT_FORWARD], paths[:, SENT_BACK] = stage <= turning, stage < turning
        if not self.ahead:  # each action of a path reads its message
            paths[:, SENT_FORWARD:] = paths[:, :2]
        paths[:, SENT_FORWARD, 0] = paths[:, SENT_BACK, -1] = 0.0
        return paths


def in_one_round(schedule: str, ranks: int, microbatches: int) -> bool:
    """Whether a stage is done with all of its backwards before its rank's next one begins: forwards are done by then,
    so that of all moments that one holds most at which the last stage begins."""
    return schedule == "interleaved" and chunk_rounds(ranks, microbatches) == microbatches


def is_interleaved(schedule: str) -> bool:
    """Whether a rank runs its stages in rounds of microbatches, so that it may have several."""
    return schedule in ROUNDS


def splits(schedule: str) -> bool:
    """Whether the gradients of parameters are computed apart from those of inputs, later."""
    return schedule in SPLIT


def deals_rounds(ranks: int, microbatches: int) -> bool:
    """Whether the microbatches fill equal rounds (``cost_models.pipeline.schedule.round_size``)."""
    return microbatches % max(1, microbatches // ranks) == 0


def split_backward(
    backward_s: float, weights_s: float, added_s: float, *, first: bool, fuses: bool
) -> tuple[float, float]:
    """(seconds of the backward, of these for the weights' gradients) as the engine splits it.

    The first stage has no inputs' gradients: its whole backward waits (``runtime.pipeline.stage``). A compiled
    segment's backward is one function, which gives all gradients whichever are asked for: it runs for the inputs, and
    once more for the weights, whose gradients alone are added up.

    added_s  of the backward, to add gradients up
    """
    if first:
        return backward_s, backward_s
    return (2 * backward_s - added_s, backward_s) if fuses else (backward_s, weights_s)


def least_held(schedule: str, ranks: int, microbatches: int) -> tuple[int, ...]:
    """For each rank, microbatches that it holds on every one of its stages at once: all of a round but on its last
    stage, there those that it goes forward before the first comes back."""
    size = chunk_rounds(ranks, microbatches)
    if splits(schedule):
        return (min(size, ranks),) * ranks
    return tuple(min(size, 2 * (ranks - 1 - rank) + 1) for rank in range(ranks))


def chunk_rounds(ranks: int, microbatches: int) -> int:
    """Microbatches that go through one chunk before its rank turns to the next."""
    return round_size("interleaved", ranks, microbatches)


def rank_paths(ranks: int, microbatches: int, virtual_stages: int) -> np.ndarray:
    """[v·d paths, v·d stages]: of interleaved 1F1B, how often a path runs each stage, forward and backward alike.

    Path (c, r): the first microbatch's forward up to stage c·d + r, rank r's actions from there to the last backward
    of that stage, and from there the last backward of all stages before. It leaves out the first and the last round of
    the rank's stages before c.
    """
    size, count = chunk_rounds(ranks, microbatches), ranks * virtual_stages
    paths = np.zeros((count, count))
    for number in range(count):
        rank = number % ranks
        paths[number, :number] += 1
        paths[number, rank::ranks] += microbatches
        paths[number, rank:number:ranks] -= size
    return paths


def least_interleaved_slots(
    schedule: str, ranks: int, microbatches: int, virtual_stages: int, sharing: Sharing
) -> float:
    """No cuts whatever take fewer times of a d-th of the chain's forward and backward.

    A mean of ``rank_paths``, with weights over ranks that grow towards the last by q = 1 - tilt/(mv): stage j·d + ρ
    counts m·w_ρ + Σ_{r>ρ} w_r/v + (1 - (j+1)/v)·(1 - g·w_ρ) times in it, with g the microbatches of a round, so that
    the least of these counts bounds every division of the chain. Where the backward is split: a rank's own work.
    """
    if splits(schedule):
        return float(microbatches)
    size, least = chunk_rounds(ranks, microbatches), float(microbatches)
    chunk = np.array([[0], [virtual_stages - 1]])
    for tilt in TILTS:
        weights = (1 - tilt / (microbatches * virtual_stages)) ** np.arange(ranks - 1, -1, -1)
        weights /= weights.sum()
        after = weights[::-1].cumsum()[::-1] - weights
        skipped = (1 - (chunk + 1) / virtual_stages) * (1 - size * weights)
        counts = microbatches * weights + after / virtual_stages + skipped
        least = max(least, float(counts.min()) * ranks / sharing.gain)
    return least
