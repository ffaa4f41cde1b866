"""What no plan undercuts where pipeline ranks hold several stages each, whatever its operators.

The linear program of ``chunk_rows``, over stages in fractions of segments. A rank's memory rounds to no fraction of a
segment: where that bound leaves a gap, the segments of each type that a rank holds (of few stages: that each holds),
and those that it recomputes, are whole numbers.

All segments of a block have the same operators, recomputed or not: where those of the heaviest block keep at most K'
bytes, it is all d of its segments that take so much more, with λ·(K' - K) for each in the place of λ·x. What these
bytes may be is divided into ranges, the one with the least bound again and again (``Leaner.within``).

The schedule is in it as a whole where it is short (``chunk_timeline``). Of others some paths are: those of
``known_paths``, and the longest through the schedule with each answer's seconds, for as long as these raise the bound.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from autoplan.pricing.chunks import rank_paths, splits
from autoplan.search.chunk_rows import Leaner, Rows, Tilt
from autoplan.search.chunk_timeline import short, timeline
from autoplan.search.pieces import Pieces, even_stages

NODES = 50           # of the search for whole numbers
TIMED_NODES = 500    # the same by whole schedules, of those done by a limit: there are few, and seldom any
CHUNKS = 4           # on which paths turn from one rank to another
SPARE = 0.3          # of the wall, that even stages of the fastest leave: then bytes don't matter
ENOUGH = 1e-3        # a relative gap of that one that is as good as none
ROUNDS = 16          # of paths that answers in fractions lead to
STALLED = 2          # such rounds that may raise nothing, one after another
RANGES = 24          # of bytes kept that are looked at
TIMED_RANGES = 2     # the same by whole schedules
NARROW = 8           # parts of the spread that a range is divided into before whole numbers are sought
WHOLE_STAGES = 16    # of more stages whole numbers on each, and ranges of whole schedules, take seconds to say little
RANKS_STAGES = 64    # the same of whole numbers on each rank
TELLING = 0.98       # of the whole schedule's bound, which paths say at least where whole numbers by them are worth it


def least_chunks_s(
    pieces: Pieces,
    leaner: Leaner | None = None,
    limit_s: float = np.inf,
    tilt: Tilt | None = None,
    *,
    whole: bool = False,
) -> float:
    """Seconds that no cuts of the chain undercut, whatever of it is recomputed and however leanly its operators run;
    ``limit_s`` is enough.

    pieces  of the fastest operators, holding what the leanest do
    leaner  None: no bytes matter
    tilt    None: all operators take the forward and the backward as the fastest do
    whole   as tight as is known, which takes many times as long
    """
    if len(pieces) < pieces.stages:
        return np.inf
    asked = _Asked(pieces, leaner, limit_s, tilt, list(known_paths(pieces)))
    paths_s = asked.by_paths_s()
    if not whole or paths_s >= limit_s:
        return paths_s
    bound_s = max(paths_s, asked.in_fractions_s(ROUNDS))
    many = pieces.stages > WHOLE_STAGES
    if bound_s >= limit_s or (many and (pieces.stages > RANKS_STAGES or paths_s < TELLING * bound_s)):
        return bound_s
    bound_s = max(bound_s, asked.in_whole_numbers_s())
    if bound_s >= limit_s or (many and short(pieces)):
        return bound_s
    if leaner is None or not leaner.heaviest.any() or pieces.recompute != "auto":
        return bound_s
    return asked.in_ranges_s(leaner, bound_s)


@dataclass(frozen=True)
class _Asked:
    """One question; ``paths`` grow by what answers lead to."""

    pieces: Pieces
    leaner: Leaner | None
    limit_s: float
    tilt: Tilt | None
    paths: list[np.ndarray] = field(default_factory=list)

    def rows(self) -> Rows:
        return Rows(self.pieces, self.leaner, self.paths, self.tilt)

    def in_ranges_s(self, leaner: Leaner, bound_s: float) -> float:
        """The bytes that the heaviest block keeps divided into ranges, the one with the least bound first; where it is
        narrow, in whole numbers."""
        queue: list[tuple[float, float, float, bool]] = []

        def look(low: float, high: float) -> None:
            part_s = self.within(leaner, low, high).in_fractions_s()
            heapq.heappush(queue, (max(bound_s, part_s), low, high, False))

        middle = leaner.spread / 2
        for low, high in itertools.pairwise((0.0, middle, leaner.spread, np.inf) if middle else (0.0, np.inf)):
            look(low, high)
        for _ in range(TIMED_RANGES if short(self.pieces) else RANGES):
            bound_s, low, high, settled = queue[0]
            if bound_s >= self.limit_s or settled:
                break
            heapq.heappop(queue)
            if np.isinf(high) or high - low <= leaner.spread / NARROW:
                few = self.pieces.stages <= WHOLE_STAGES
                whole_s = self.within(leaner, low, high).in_whole_numbers_s() if few else 0.0
                heapq.heappush(queue, (max(bound_s, whole_s), low, high, True))
            else:
                look(low, (low + high) / 2)
                look((low + high) / 2, high)
        return queue[0][0]

    def within(self, leaner: Leaner, low: float, high: float) -> _Asked:
        pieces, leaner = leaner.within(self.pieces, low, high)
        return replace(self, pieces=pieces, leaner=leaner)

    def in_fractions_s(self, rounds: int = 1) -> float:
        """In fractions of segments: by the whole schedule, or by paths."""
        if not short(self.pieces):
            return self.by_paths_s(rounds)
        rows = self.rows()
        return timeline(rows).bound() / rows.scale

    def by_paths_s(self, rounds: int = 1) -> float:
        """By the paths, which grow by those that the answers lead to, in so many rounds."""
        rows, bound_s, stalled = self.rows(), 0.0, 0
        for _ in range(rounds):
            found = rows.linear().solved(enough=self.limit_s * rows.scale)
            stalled = 0 if found.bound / rows.scale > bound_s * (1 + ENOUGH) else stalled + 1
            bound_s = max(bound_s, found.bound / rows.scale)
            if rounds == 1 or found.values is None or stalled > STALLED or splits(self.pieces.schedule):
                break
            self.paths.append(self.pieces.rounds.script.path(rows.durations_s(found.values)).counts)
            rows = self.rows()
        return bound_s

    def in_whole_numbers_s(self) -> float:
        """In whole numbers: of few stages the segments on each, by the whole schedule where it is short; else those of
        each rank, by the paths."""
        rows = self.rows()
        if short(self.pieces) and self.pieces.stages <= WHOLE_STAGES:
            found = timeline(rows, self.limit_s, whole=True).bound(whole=True, nodes=TIMED_NODES, gap=ENOUGH)
            return min(found / rows.scale, self.limit_s)
        program = rows.linear()
        return program.bound(whole=True, nodes=NODES, gap=ENOUGH) / rows.scale if program.integers.any() else 0.0


def roomy(pieces: Pieces) -> bool:
    """Whether so much is free that no plan worth a thought is short of bytes; pieces of the fastest operators."""
    if pieces.recompute not in ("auto", "none"):
        return False
    return pieces.over(pieces.pinned(even_stages(pieces))) <= -SPARE * pieces.wall


def known_paths(pieces: Pieces) -> np.ndarray:
    """[paths, 3, v·d]: those that any schedule of its kind has. Where the backward is split: to each rank by the first
    microbatch's forward, then all that the rank does."""
    ranks, many = pieces.ranks, pieces.microbatches
    if splits(pieces.schedule):
        even = pieces.path(pieces.pinned(even_stages(pieces))).counts
        found = np.zeros((ranks, 3, pieces.stages))
        for rank in range(ranks):
            found[rank, 0, :rank] = 1
            found[rank, :, rank::ranks] = many
        return np.concatenate([found, pieces.rounds.paths, even[None]])
    rows = rank_paths(ranks, many, pieces.virtual_stages)
    chunks = np.unique(np.linspace(0, pieces.virtual_stages - 1, CHUNKS).round().astype(int))
    rows = np.concatenate([rows[c * ranks : (c + 1) * ranks] for c in chunks])
    return np.stack([rows, rows, 0 * rows], axis=1)
