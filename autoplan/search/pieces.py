"""A chain whose pipeline ranks hold several stages (chunks) each: seconds of its actions, bytes of its ranks.

Stage k of v·d holds a run of segments and is on rank k mod d. A rank's memory is what all of its stages hold: states
and buffers of each, activations at the moments of the schedule at which they are most, and one largest transient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoplan.pricing.chunks import Script, held_chunks, script, splits
from autoplan.search.stages import Interval

FULL, PART = "full", "selective"


@dataclass(frozen=True)
class Division:
    """A division of the chain: each stage's segments, and of its repeated ones how many are recomputed in full and,
    after them, selectively."""

    stages: tuple[Interval, ...]
    full: tuple[int, ...]
    part: tuple[int, ...]


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
    messages_s: np.ndarray
    repeated: np.ndarray
    recompute: str
    schedule: str
    ranks: int
    virtual_stages: int
    microbatches: int
    wall: float

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def stages(self) -> int:
        return self.ranks * self.virtual_stages

    @cached_property
    def script(self) -> Script:
        return script(self.schedule, self.ranks, self.microbatches, self.virtual_stages)

    @cached_property
    def held(self) -> tuple[np.ndarray, ...]:
        """For each rank [moments, v]: microbatches held on each of its stages."""
        return held_chunks(self.schedule, self.ranks, self.microbatches, self.virtual_stages)

    def pinned(self, stages: Sequence[Interval]) -> Division:
        """These stages with as much recomputed as ``recompute`` asks for, nothing where it is free."""
        counts = tuple(int(self.repeated[slice(*at)].sum()) for at in stages)
        none = (0,) * len(stages)
        return Division(
            tuple(stages), counts if self.recompute == FULL else none, counts if self.recompute == PART else none
        )

    def again(self, division: Division, stage: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each segment of a stage, whether it is recomputed in full, and whether selectively."""
        first, last = division.stages[stage]
        places = np.flatnonzero(self.repeated[first:last])
        full, part = np.zeros((2, last - first), dtype=bool)
        full[places[: division.full[stage]]] = True
        part[places[division.full[stage] : division.full[stage] + division.part[stage]]] = True
        return full, part

    def durations_s(self, division: Division) -> np.ndarray:
        """[3, v·d]: seconds of each stage's forward, backward or inputs' gradients, and weights' gradients, each with
        the message that it receives."""
        spent = np.zeros((3, self.stages))
        for stage, (first, last) in enumerate(division.stages):
            run = slice(first, last)
            full, part = self.again(division, stage)
            again_s = self.full_s[run][full].sum() + self.part_s[run][part].sum()
            spent[0, stage] = self.forward_s[run].sum()
            spent[1, stage] = self.backward_s[run].sum() + again_s
            if splits(self.schedule) and stage == 0:
                spent[1:, 0] = 0.0, self.whole_s[run].sum() + again_s
            elif splits(self.schedule):
                spent[2, stage] = self.weights_s[run].sum()
                spent[1, stage] -= spent[2, stage]
            if stage:
                spent[0, stage] += self.messages_s[stage, first]
                spent[1, stage - 1] += self.messages_s[stage, first]
        return spent

    def moments(self, rank: int, division: Division) -> np.ndarray:
        """[moments]: bytes on a device of a rank at each of its moments; a tied parameter as often as it is read."""
        mine = range(rank, self.stages, self.ranks)
        once, rest = [], 0.0
        for stage in mine:
            first, last = division.stages[stage]
            run = slice(first, last)
            full, part = self.again(division, stage)
            kept = np.where(full, self.inputs[run], np.where(part, self.selective[run], self.kept[run]))
            once.append(kept.sum() + self.constants[run].max())
            rest += self.states[run].sum()
            rest += self.received[first] if stage else 0.0
            rest += self.sent[last] if last < len(self) else 0.0
        return self.held[rank] @ np.array(once) + rest + self.transient(rank, division)

    def transient(self, rank: int, division: Division) -> float:
        working = gathered = rebuilt = 0.0
        for stage in range(rank, self.stages, self.ranks):
            run = slice(*division.stages[stage])
            full, part = self.again(division, stage)
            working = max(working, self.working[run].max())
            gathered = max(gathered, self.gathered[run].max())
            rebuilt = max(rebuilt, self.kept[run][full].max(initial=0.0), self.rebuilt[run][part].max(initial=0.0))
        return working + gathered + rebuilt

    def over(self, division: Division) -> float:
        """Bytes by which the fullest rank exceeds the wall."""
        return max(float(self.moments(rank, division).max()) for rank in range(self.ranks)) - self.wall

    def step_s(self, division: Division) -> float:
        return self.script.path(self.durations_s(division)).step_s


def fitted(pieces: Pieces, division: Division) -> Division | None:
    """The same stages with as many segments recomputed in full, where that is free, as the wall asks for; those first
    of which most is held. None where all are not enough."""
    if pieces.recompute != "auto":
        return division if pieces.over(division) <= 0 else None
    counts = [int(pieces.repeated[slice(*at)].sum()) for at in division.stages]
    full = list(division.full)
    for rank in range(pieces.ranks):
        mine = list(range(rank, pieces.stages, pieces.ranks))
        weight = dict(zip(mine, pieces.held[rank].max(axis=0).tolist(), strict=True))
        while pieces.moments(rank, division).max() > pieces.wall:
            free = [k for k in mine if full[k] < counts[k]]
            if not free:
                return None
            chosen = max(free, key=lambda k: (weight[k], -k))
            full[chosen] += 1
            part = tuple(min(p, n - f) for p, n, f in zip(division.part, counts, full, strict=True))
            division = replace(division, full=tuple(full), part=part)
    return division
