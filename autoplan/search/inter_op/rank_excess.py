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
    begin             [v·d, many]: the number of each stage's first segment among those that may be recomputed
    flight            [v·d, many]: bytes for each microbatch in flight
    running           [d, moments, many], or of one moment: bytes beyond the limit while the schedule runs, beside what
                      is in flight
    emptied           [d, many]: bytes beyond the limit between two steps
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
        ends      [v·d + 1, many]: where each stage begins, and the chain's end
        """
        each = memory.stages(ends[:-1], ends[1:], 0, 0)
        ranks = each.by_rank(len(held))
        running, emptied = (memory.gradients_at(each, ranks, part) - limit for part in standing)
        running = running + memory.running(ranks)[:, None]
        emptied = emptied[:, 0] + memory.emptied(ranks)
        return RankExcess(memory, held, memory.index[ends[:-1]], each.flight, running, emptied)

    def picked(self, numbers: np.ndarray) -> RankExcess:
        begin, flight, running, emptied = (
            part.take(numbers, axis=-1) for part in (self.begin, self.flight, self.running, self.emptied)
        )
        return RankExcess(self.memory, self.held, begin, flight, running, emptied)

    def recomputing(self, full: np.ndarray, part: np.ndarray) -> np.ndarray:
        """[d, many]: bytes by which each rank exceeds the limit at its fullest moment."""
        flying, beside = self.parts(full, part)
        if beside.shape[1] == 1:
            return np.asarray(flying.max(axis=1) + beside[:, 0])
        return np.asarray((flying + beside).max(axis=1))

    def moments(self, full: np.ndarray, part: np.ndarray) -> np.ndarray:
        """[d, moments, many]: bytes by which each rank exceeds the limit while it runs, less than nothing where it
        doesn't.

        full, part  [v·d, many]: segments of each stage that are recomputed in full, and then selectively
        """
        flying, beside = self.parts(full, part)
        return np.asarray(flying + beside)

    def parts(self, full: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(of these what is in flight, what stands beside; the latter perhaps of one moment)"""
        sums, tops, begin = self.memory.sums, self.memory.tops, self.begin
        middle = begin + full
        end = middle + part
        saved = sums["full"][middle] - sums["full"][begin] + (sums["part"][end] - sums["part"][middle])
        again = np.maximum(tops["full"][begin, middle], tops["part"][middle, end])
        flight, whole = self.by_rank(self.flight - saved), self.by_rank(again).max(axis=0)
        return self.held @ flight.swapaxes(0, 1), self.running + whole[:, None]

    def most(self, full: np.ndarray, part: np.ndarray) -> np.ndarray:
        """[many]: bytes by which the fullest rank exceeds the limit, also with nothing in flight. Of one division: of
        as many as there are counts."""
        return np.asarray(np.maximum(self.recomputing(full, part), self.emptied).max(axis=0))

    def by_rank(self, of_stages: np.ndarray) -> np.ndarray:
        """[v, d, many] of [v·d, many]: stage k is on rank k mod d."""
        return of_stages.reshape(len(of_stages) // len(self.held), len(self.held), of_stages.shape[1])


def padded(held: Sequence[np.ndarray]) -> np.ndarray:
    """[d, moments, v] of [moments, v] for each rank, whose last one is repeated where others have more."""
    most = max(len(moments) for moments in held)
    return np.stack([np.pad(moments, ((0, most - len(moments)), (0, 0)), mode="edge") for moments in held])
