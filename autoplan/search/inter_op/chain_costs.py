"""A chain whose pipeline ranks hold several stages (chunks) each: seconds of its actions, bytes of its ranks.

Stage k of v·d holds a run of segments and is on rank k mod d. A rank's memory is what all of its stages hold: states
and buffers of each, activations at the moments of the schedule at which they are most, and one largest transient.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from autoplan.cost.interleaved import CriticalPath, Rounds, splits
from autoplan.search.inter_op.partition import Interval
from autoplan.search.inter_op.recomputation import range_max

FULL, PART = "full", "selective"
LARGEST = ("constants", "working", "gathered", "alone", "reduced")
"""Columns of which a stage has the largest of its segments."""
SUMMED = ("forward_s", "backward_s", "weights_s", "states", "kept", "updating")
"""Columns of which a stage has the sum of its segments."""


@dataclass(frozen=True)
class Division:
    """A division of the chain: each stage's segments, and of its repeated ones how many are recomputed in full and,
    after them, selectively."""

    stages: tuple[Interval, ...]
    full: tuple[int, ...]
    part: tuple[int, ...]


@dataclass(frozen=True)
class Divisions:
    """Many divisions of a chain, with as many stages each.

    ends        [many, v·d + 1]: where each stage begins, and the chain's end
    full, part  [many, v·d]
    """

    ends: np.ndarray
    full: np.ndarray
    part: np.ndarray

    @staticmethod
    def of(division: Division) -> Divisions:
        ends = [first for first, _ in division.stages] + [division.stages[-1][1]]
        return Divisions(np.array([ends]), np.array([division.full]), np.array([division.part]))

    def __len__(self) -> int:
        return len(self.ends)

    def picked(self, numbers: np.ndarray) -> Divisions:
        return Divisions(self.ends[numbers], self.full[numbers], self.part[numbers])

    @property
    def keys(self) -> list[bytes]:
        """One for each; those of equal divisions are equal."""
        return [row.tobytes() for row in np.concatenate([self.ends, self.full, self.part], axis=1)]

    def one(self, number: int) -> Division:
        stages = tuple(itertools.pairwise(self.ends[number].tolist()))
        return Division(stages, tuple(self.full[number].tolist()), tuple(self.part[number].tolist()))


@dataclass(frozen=True)
class Pieces:
    """One number for each of the chain's N segments, and the schedule that is to run them.

    forward_s, backward_s, weights_s   of one microbatch; the last is the part of the second that waits where the
                                       schedule splits the backward; ``whole_s`` is what the first stage then waits with
    full_s, part_s                     seconds to run a segment again, in full or selectively
    states                             bytes of its parameters' states
    kept, inputs, selective            bytes kept of a microbatch: of everything, of its input alone, selectively
    rebuilt                            bytes that stand whole while a segment that recomputes selectively runs again
    constants, working, gathered       bytes, the largest of a stage's, or rank's, counts
    received, sent                     bytes of the buffers of a stage that begins with it, of one that ends before it
    leaving                            bytes of the result, of each microbatch in flight, of a stage that ends before it
    updating, alone, reduced           bytes that stand where nothing is in flight (``Loads.emptied``): all of the first
                                       and the largest of the second, or the largest of the third
    messages_s                         [v·d, N]: of one message to a stage that begins with the segment
    repeated                           whether it may be recomputed
    recompute                          "none", "full", "selective" or "auto"
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    weights_s: np.ndarray
    whole_s: np.ndarray
    full_s: np.ndarray
    part_s: np.ndarray
    states: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray
    selective: np.ndarray
    rebuilt: np.ndarray
    constants: np.ndarray
    working: np.ndarray
    gathered: np.ndarray
    received: np.ndarray
    sent: np.ndarray
    leaving: np.ndarray
    updating: np.ndarray
    alone: np.ndarray
    reduced: np.ndarray
    messages_s: np.ndarray
    repeated: np.ndarray
    recompute: str
    schedule: str
    ranks: int
    virtual_stages: int
    microbatches: int
    wall: float
    rounds: Rounds

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def stages(self) -> int:
        return self.ranks * self.virtual_stages

    @cached_property
    def key(self) -> Hashable:
        """Equal for pieces that are; their rounds are those of the schedule and the sizes."""
        columns = tuple(getattr(self, f.name).tobytes() for f in fields(self) if f.type == "np.ndarray")
        sizes = (self.schedule, self.ranks, self.virtual_stages, self.microbatches)
        return (*columns, *sizes, self.recompute, self.wall)

    @cached_property
    def held_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """(rank of each row, [rows, v]): the moments of all ranks."""
        ranks = np.repeat(np.arange(self.ranks), [len(moments) for moments in self.rounds.held])
        return ranks, np.concatenate(self.rounds.held)

    @cached_property
    def sums(self) -> dict[str, np.ndarray]:
        """Of each column the sums of the first 0, 1, … segments; of what recomputation costs and saves, those of the
        first 0, 1, … that may be recomputed."""
        places = self.repeated.astype(bool)
        columns = {name: getattr(self, name) for name in SUMMED}
        columns |= {"repeated": self.repeated.astype(float), "full_s": self.full_s[places]}
        columns |= {"part_s": self.part_s[places], "full": (self.kept - self.inputs)[places]}
        columns["part"] = (self.kept - self.selective)[places]
        return {name: np.concatenate([[0.0], np.cumsum(column)]) for name, column in columns.items()}

    def pinned(self, stages: Sequence[Interval]) -> Division:
        """These stages with as much recomputed as ``recompute`` asks for, nothing where it is free."""
        none = (0,) * len(stages)
        if self.recompute not in (FULL, PART):
            return Division(tuple(stages), none, none)
        counts = self.counts(stages)
        full, part = (counts, none) if self.recompute == FULL else (none, counts)
        return Division(tuple(stages), full, part)

    def counts(self, stages: Sequence[Interval]) -> tuple[int, ...]:
        """Segments of each stage that may be recomputed."""
        before = self.sums["repeated"]
        return tuple(int(before[last] - before[first]) for first, last in stages)

    def counts_of(self, many: Divisions) -> np.ndarray:
        """[many, v·d]: segments of each stage that may be recomputed."""
        return np.diff(self.sums["repeated"][many.ends], axis=1).astype(int)

    def again(self, many: Divisions, full: str, part: str) -> np.ndarray:
        """[many, v·d]: a cost or a saving of what each stage recomputes."""
        begin, middle, end = self.recomputed(many)
        return self.sums[full][middle] - self.sums[full][begin] + self.sums[part][end] - self.sums[part][middle]

    def recomputed(self, many: Divisions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[many, v·d] each: among the segments that may be recomputed, the first of each stage, the first after those
        that are in full, and the first after those that are selectively."""
        begin = self.sums["repeated"][many.ends[:, :-1]].astype(int)
        middle = begin + many.full
        return begin, middle, middle + many.part

    def of_stages(self, name: str, many: Divisions) -> np.ndarray:
        """[many, v·d]: a column's sum over each stage."""
        return np.diff(self.sums[name][many.ends], axis=1)

    @cached_property
    def tops(self) -> dict[str, np.ndarray]:
        """[N+1, N+1] each: a column's largest of every run of segments; "full" and "part" what stands while segments
        that may be recomputed run again, of every run of these."""
        places = self.repeated.astype(bool)
        columns = {name: getattr(self, name) for name in LARGEST}
        columns |= {"full": self.kept[places], "part": self.rebuilt[places]}
        return {name: range_max(column) for name, column in columns.items()}

    def top(self, name: str, many: Divisions) -> np.ndarray:
        """[many, v·d]: a column's largest of each stage."""
        return self.tops[name][many.ends[:, :-1], many.ends[:, 1:]]

    def durations_s(self, division: Division) -> np.ndarray:
        """[3, v·d]: as ``all_durations_s`` of one division."""
        return np.asarray(self.all_durations_s(Divisions.of(division))[0])

    def all_durations_s(self, many: Divisions) -> np.ndarray:
        """[many, 3, v·d]: seconds of each stage's forward, backward or inputs' gradients, and weights' gradients, each
        with the message that it receives."""
        again_s = self.again(many, "full_s", "part_s")
        spent = np.zeros((len(many), 3, self.stages))
        spent[:, 0] = self.of_stages("forward_s", many)
        spent[:, 1] = self.of_stages("backward_s", many) + again_s
        if splits(self.schedule):
            spent[:, 2] = self.of_stages("weights_s", many)
            spent[:, 1] -= spent[:, 2]
            spent[:, 1, 0] = 0.0
            spent[:, 2, 0] = [self.whole_s[:end].sum() for end in many.ends[:, 1].tolist()] + again_s[:, 0]
        messages_s = self.messages_s[np.arange(1, self.stages), many.ends[:, 1:-1]]
        spent[:, 0, 1:] += messages_s
        spent[:, 1, :-1] += messages_s
        return spent

    def by_rank(self, of_stages: np.ndarray) -> np.ndarray:
        """[…, v, d] of […, v·d]."""
        return of_stages.reshape(*of_stages.shape[:-1], self.virtual_stages, self.ranks)

    def moments(self, division: Division) -> np.ndarray:
        """[rows of ``held_rows``, and one more for each rank]: as ``all_moments`` of one division."""
        return np.asarray(self.all_moments(Divisions.of(division))[0])

    def all_moments(self, many: Divisions) -> np.ndarray:
        """[many, rows of ``held_rows``, and one more for each rank, nothing in flight]: bytes on a device of a rank at
        a moment; a tied parameter as often as it is read."""
        begins = many.ends[:, 1:-1]
        once = self.of_stages("kept", many) - self.again(many, "full", "part") + self.top("constants", many)
        once[:, :-1] += self.leaving[begins]
        rest = self.of_stages("states", many)
        rest[:, 1:] += self.received[begins]
        rest[:, :-1] += self.sent[begins]
        standing = self.by_rank(rest).sum(axis=1)
        fixed = standing + self.transients(many)
        rank, held = self.held_rows
        running = (held * self.by_rank(once).swapaxes(1, 2)[:, rank]).sum(axis=2) + fixed[:, rank]
        alone, reduced = (self.by_rank(self.top(name, many)).max(axis=1) for name in ("alone", "reduced"))
        updating = self.by_rank(self.of_stages("updating", many)).sum(axis=1)
        return np.concatenate([running, standing + np.maximum(updating + alone, reduced)], axis=1)

    def transients(self, many: Divisions) -> np.ndarray:
        """[many, d]: the largest of each rank's."""
        begin, middle, end = self.recomputed(many)
        rebuilt = np.maximum(self.tops["full"][begin, middle], self.tops["part"][middle, end])
        columns = (self.top("working", many), self.top("gathered", many), rebuilt)
        working, gathered, again = (self.by_rank(column).max(axis=1) for column in columns)
        return np.asarray(working + gathered + again)

    def excess(self, many: Divisions) -> tuple[np.ndarray, np.ndarray]:
        """[many, d] each: bytes by which each rank exceeds the wall while it runs, less than nothing where it doesn't,
        and with nothing in flight."""
        ranks, _ = self.held_rows
        beyond = self.all_moments(many) - self.wall
        starts = np.searchsorted(ranks, np.arange(self.ranks))
        return np.maximum.reduceat(beyond[:, : len(ranks)], starts, axis=1), beyond[:, len(ranks) :]

    def over(self, division: Division) -> float:
        """Bytes by which the fullest rank exceeds the wall."""
        return float(self.moments(division).max()) - self.wall

    def path(self, division: Division) -> CriticalPath:
        return self.rounds.script.path(self.durations_s(division))

    def step_s(self, division: Division) -> float:
        return self.path(division).step_s

    def all_steps_s(self, many: Divisions) -> np.ndarray:
        """[many]"""
        return self.rounds.script.line.steps_s(self.all_durations_s(many).reshape(len(many), -1))


def fitted(pieces: Pieces, division: Division, *, late: bool = False) -> Division | None:
    """The same stages with as many segments recomputed in full, where that is free, as the wall asks for; those first
    of which most is held, of a rank's stages alike its first, or its last. None where all are not enough."""
    if pieces.recompute != "auto":
        return division if pieces.over(division) <= 0 else None
    counts, full, part = pieces.counts(division.stages), list(division.full), list(division.part)
    rank_of_row, held = pieces.held_rows
    weight = np.zeros((pieces.ranks, pieces.virtual_stages))
    np.maximum.at(weight, rank_of_row, held)
    saving = max(1.0, float((pieces.kept - pieces.inputs).max()))
    while True:
        excess, beyond = np.zeros(pieces.ranks), pieces.moments(division) - pieces.wall
        if beyond[len(held):].max() > 0:
            return None
        np.maximum.at(excess, rank_of_row, beyond[: len(held)])
        if not excess.any():
            return division
        for rank in np.flatnonzero(excess).tolist():
            mine = [k for k in range(rank, pieces.stages, pieces.ranks) if full[k] < counts[k]]
            if not mine:
                return None
            for _ in range(max(1, int(excess[rank] / (saving * weight[rank].max())))):
                free = [k for k in mine if full[k] < counts[k]]
                if not free:
                    return None
                chosen = max(free, key=lambda k: (weight[rank, k // pieces.ranks], k if late else -k))
                full[chosen] += 1
                part[chosen] = min(part[chosen], counts[chosen] - full[chosen])
        division = replace(division, full=tuple(full), part=tuple(part))


def even_stages(pieces: Pieces) -> tuple[Interval, ...]:
    """Stages of about the same time, none empty."""
    total = np.concatenate([[0.0], np.cumsum(pieces.forward_s + pieces.backward_s)])
    ends, count = [0], pieces.stages
    for stage in range(1, count):
        near = int(np.abs(total - total[-1] * stage / count).argmin())
        ends.append(min(max(near, ends[-1] + 1), len(pieces) - (count - stage)))
    ends.append(len(pieces))
    return tuple(itertools.pairwise(ends))
