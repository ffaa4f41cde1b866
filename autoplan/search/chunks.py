"""Where the chain is cut when pipeline ranks hold several stages each, by cutting planes (Kelley 1960).

The schedule is run on some cuts; the longest path through it, as counts of each stage's actions, bounds the step of
all cuts from below, and goes into the program of ``chunk_program``, whose answer is run next. First in fractions of
segments, which takes milliseconds and proves a bound for all counts of blocks; then, where that leaves a gap, in whole
ones where these are few, and by moving single segments between stages where they are many.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from autoplan.pricing.chunks import rank_paths, splits
from autoplan.search.chunk_program import Found, Master
from autoplan.search.pieces import Division, Pieces, fitted
from autoplan.search.stages import Cuts

GAP = 0.005
MOST_CUTS = 6      # programs solved in fractions
STALLED = 2e-4     # less than that, as a share, and a further cut is not worth its time
FEW_INTEGERS = 24  # up to which the program is solved in whole numbers
WHOLE_CUTS = 10    # such programs solved
MOVES = 8          # schedules run on what such moves lead to
FEW_MOMENTS = 2    # of a rank's, those with most in flight, are in the program from the start


@dataclass(frozen=True)
class ChunkCuts:
    """What was found; ``cuts`` has its simulated and its least possible seconds."""

    cuts: Cuts
    division: Division


def choose_chunks(
    pieces: Pieces, limit_s: float = float("inf"), gap: float = GAP, whole_cuts: int = WHOLE_CUTS
) -> ChunkCuts | None:
    """The best cuts of the chain into the stages of all ranks, to a relative gap, or as near as the counts above
    allow, with the bound that is proven by then. None where none fits, or all take ``limit_s`` or more."""
    if len(pieces) < pieces.stages:
        return None
    return _Search(pieces, limit_s, gap).run(whole_cuts)


def least_chunks_s(pieces: Pieces, limit_s: float = float("inf")) -> float:
    """Seconds that no cuts of the chain undercut, nothing recomputed and under no wall; ``limit_s`` is enough."""
    free = replace(pieces, recompute="none", wall=np.inf)
    search = _Search(free, limit_s, GAP)
    search.relaxed(search.begin())
    return search.bound_s


class _Search:
    def __init__(self, pieces: Pieces, limit_s: float, gap: float) -> None:
        self.pieces, self.limit_s, self.gap = pieces, limit_s, gap
        self.best: Division | None = None
        self.best_s = np.inf
        self.bound_s = 0.0
        self.moments: set[tuple[int, int]] = set()
        self.tried: set[Division] = set()
        self.paths: list[np.ndarray] = []
        self.last: Division | None = None

    @property
    def done(self) -> bool:
        return self.best_s <= self.bound_s * (1 + self.gap) or self.bound_s >= self.limit_s

    def run(self, whole_cuts: int) -> ChunkCuts | None:
        master = self.begin()
        self.relaxed(master)
        if not self.done and master.integers <= FEW_INTEGERS:
            for _ in range(whole_cuts):
                if not self.learn(master, master.solve(self.gap / 4)) or self.done:
                    break
        elif not self.done:
            starts = [d for d in (self.best, self.last) if d is not None]
            for start in dict.fromkeys(self.pieces.pinned(d.stages) for d in starts):
                self.move(start)
        return self.result(master)

    def relaxed(self, master: Master) -> None:
        """Paths for as long as they raise the bound, in fractions of segments."""
        for _ in range(MOST_CUTS):
            before_s = self.bound_s
            if not self.learn(master, master.relax()) or self.done:
                break
            if self.bound_s <= before_s * (1 + STALLED):
                break

    def begin(self) -> Master:
        """The program with the paths that are known, and that of even stages."""
        p = self.pieces
        even = p.pinned(even_stages(p))
        first = p.script.path(p.durations_s(even))
        master = Master(p, first.step_s)
        if not splits(p.schedule):
            self.paths += known_paths(p)
        self.paths.append(first.counts)
        for path in self.paths:
            master.add_path(path)
        self.take(even)
        if p.over(even) > -0.3 * p.wall:
            self.hold(master, FEW_MOMENTS)
        return master

    def learn(self, master: Master, found: Found) -> bool:
        """Takes the program's answer, and gives it what that shows; False where there is no more to learn."""
        self.bound_s = max(self.bound_s, found.bound_s)
        if found.division is None or self.bound_s >= self.limit_s:
            return False
        self.last = found.division
        self.paths.append(self.pieces.script.path(self.pieces.durations_s(found.division)).counts)
        master.add_path(self.paths[-1])
        self.hold_exceeded(master, found.division)
        self.take(found.division)
        return True

    def move(self, start: Division) -> None:
        """From a division, single segments go from one stage to another, the borders between along with them, while
        the longest of the known paths gets shorter; then the schedule is run, and its longest path is known too."""
        for _ in range(MOVES):
            start = descend(self.pieces, start, np.array(self.paths))
            if start in self.tried or self.done:
                return
            self.take(start)
            self.paths.append(self.pieces.script.path(self.pieces.durations_s(start)).counts)

    def take(self, division: Division) -> None:
        """Keeps a division where it fits, or what recomputation makes of it, and is the best so far."""
        if division in self.tried:
            return
        self.tried.add(division)
        held = fitted(self.pieces, division)
        if held is not None:
            step_s = self.pieces.step_s(held)
            if step_s < self.best_s:
                self.best, self.best_s = held, step_s

    def hold(self, master: Master, most: int) -> None:
        """Puts the fullest moments of all ranks into the program."""
        for rank, moments in enumerate(self.pieces.held):
            for number in range(min(most, len(moments))):
                self.add_moment(master, rank, number)

    def hold_exceeded(self, master: Master, division: Division) -> None:
        """Of each rank that exceeds the wall, the moment at which it does so most."""
        for rank in range(self.pieces.ranks):
            held = self.pieces.moments(rank, division)
            if held.max() > self.pieces.wall:
                self.add_moment(master, rank, int(held.argmax()))

    def add_moment(self, master: Master, rank: int, number: int) -> None:
        if (rank, number) not in self.moments:
            self.moments.add((rank, number))
            master.add_moment(rank, self.pieces.held[rank][number])

    def result(self, master: Master) -> ChunkCuts | None:
        if self.best is None or self.bound_s >= self.limit_s:
            return None
        cuts = Cuts(self.best.stages, self.best_s, min(self.bound_s, self.best_s), *master.size)
        return ChunkCuts(cuts, self.best)


def descend(pieces: Pieces, division: Division, paths: np.ndarray) -> Division:
    """The division that moves of single segments lead to, each the one that shortens the longest path most.

    paths  [paths, 3, v·d]
    """
    spent = pieces.durations_s(division)
    longest_s = float(np.tensordot(paths, spent, 2).max())
    for _ in range(2 * pieces.stages):
        ends = np.array([first for first, _ in division.stages] + [len(pieces)])
        last = ends[1:] - 1
        one = np.stack([pieces.forward_s[last], (pieces.backward_s - pieces.weights_s)[last], pieces.weights_s[last]])
        left = np.einsum("pas,as->ps", paths, one)
        gained = np.einsum("pas,at->pts", paths, one)                       # segment of stage t on stage s
        lengths = np.tensordot(paths, spent, 2)[:, None, None] - left[:, :, None] + gained
        reached = lengths.max(axis=0)
        reached[ends[1:] - ends[:-1] < 2, :] = np.inf
        source, target = np.unravel_index(int(reached.argmin()), reached.shape)
        step = -1 if source < target else 1
        low, high = sorted((int(source), int(target)))
        ends[low + 1 : high + 1] += step
        moved = pieces.pinned(tuple(itertools.pairwise(ends.tolist())))
        after = pieces.durations_s(moved)
        after_s = float(np.tensordot(paths, after, 2).max())
        if after_s >= longest_s * (1 - 1e-9):
            break
        division, spent, longest_s = moved, after, after_s
    return division


def known_paths(pieces: Pieces) -> list[np.ndarray]:
    """Paths of every interleaved schedule, through the first or the last of a rank's stages."""
    rows = rank_paths(pieces.ranks, pieces.microbatches, pieces.virtual_stages)
    chosen = [*range(pieces.ranks), *range(len(rows) - pieces.ranks, len(rows))]
    return [np.stack([rows[n], rows[n], 0 * rows[n]]) for n in dict.fromkeys(chosen)]


def even_stages(pieces: Pieces) -> tuple[tuple[int, int], ...]:
    """Stages of about the same time, none empty."""
    total = np.concatenate([[0.0], np.cumsum(pieces.forward_s + pieces.backward_s)])
    ends, count = [0], pieces.stages
    for stage in range(1, count):
        near = int(np.abs(total - total[-1] * stage / count).argmin())
        ends.append(min(max(near, ends[-1] + 1), len(pieces) - (count - stage)))
    ends.append(len(pieces))
    return tuple(itertools.pairwise(ends))


