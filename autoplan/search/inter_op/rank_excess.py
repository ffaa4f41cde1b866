"""By how much ranks exceed the memory limit, for many divisions that differ in what they recompute.

Most of ``rank_memory``'s account follows from where stages end. What recomputation changes are the bytes in flight, and
what stands whole while a segment runs again. Neighbours of a division (``tabu_search``) ask for little else, so the
rest is computed once for all of their counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.search.inter_op.rank_memory import SegmentBytes


@dataclass(frozen=True)
class RankExcess:
    """Many divisions with nothing recomputed.

    memory            the account
    held              [d, moments, v]: microbatches in flight on each rank's stages
    begin             [many, v·d]: the number of each stage's first segment among those that may be recomputed
    flight            [many, v·d]: bytes for each microbatch in flight
    running           [d, moments, many], or of one moment: bytes beyond the limit while the schedule runs, beside what
                      is in flight
    emptied           [many, d]: bytes beyond the limit between two steps
    """

    memory: SegmentBytes
    held: np.ndarray
    begin: np.ndarray
    flight: np.ndarray
    running: np.ndarray
    emptied: np.ndarray

    @staticmethod
    def of(
        memory: SegmentBytes, held: np.ndarray, standing: tuple[np.ndarray, np.ndarray], ends: np.ndarray, limit: float
    ) -> RankExcess:
        """
        standing  [d, moments, v] of gradients, and [d, 1, v] with nothing in flight
        ends      [many, v·d + 1], as of ``Divisions``
        """
        none = np.zeros_like(ends[:, :-1])
        each = memory.stages(ends[:, :-1], ends[:, 1:], none, none)
        ranks = each.by_rank(len(held))
        running, emptied = (memory.gradients_at(each, part) - limit for part in standing)
        running = running + memory.running(ranks).T[:, None]
        emptied = emptied[:, 0].T + memory.emptied(ranks)
        return RankExcess(memory, held, memory.index[ends[:, :-1]], each.flight, running, emptied)

    def picked(self, numbers: np.ndarray) -> RankExcess:
        begin, flight, emptied = (part[numbers] for part in (self.begin, self.flight, self.emptied))
        return RankExcess(self.memory, self.held, begin, flight, self.running[..., numbers], emptied)

    def recomputing(self, full: np.ndarray, part: np.ndarray) -> np.ndarray:
        """[many, d]: the same at its fullest moment."""
        return np.asarray(self.moments(full, part).max(axis=1).T)

    def moments(self, full: np.ndarray, part: np.ndarray) -> np.ndarray:
        """[d, moments, many]: bytes by which each rank exceeds the limit while it runs, less than nothing where it
        doesn't.

        full, part  [many, v·d]: segments of each stage that are recomputed in full, and then selectively
        """
        sums, tops, begin = self.memory.sums, self.memory.tops, self.begin
        middle = begin + full
        end = middle + part
        saved = sums["full"][middle] - sums["full"][begin] + (sums["part"][end] - sums["part"][middle])
        again = np.maximum(tops["full"][begin, middle], tops["part"][middle, end])
        flight, whole = self.by_rank(self.flight - saved), self.by_rank(again).max(axis=1)
        return np.asarray(self.held @ flight.transpose(2, 1, 0) + (self.running + whole.T[:, None]))

    def most(self, full: np.ndarray, part: np.ndarray) -> np.ndarray:
        """[many]: bytes by which the fullest rank exceeds the limit, also with nothing in flight. Of one division: of
        as many as there are counts."""
        return np.asarray(np.maximum(self.recomputing(full, part), self.emptied).max(axis=1))

    def by_rank(self, of_stages: np.ndarray) -> np.ndarray:
        """[many, v, d] of [many, v·d]: stage k is on rank k mod d."""
        ranks = len(self.held)
        return of_stages.reshape(len(of_stages), of_stages.shape[1] // ranks, ranks)


def padded(held: Sequence[np.ndarray]) -> np.ndarray:
    """[d, moments, v] of [moments, v] for each rank, whose last one is repeated where others have more."""
    most = max(len(moments) for moments in held)
    return np.stack([np.pad(moments, ((0, most - len(moments)), (0, 0)), mode="edge") for moments in held])
