"""What no plan undercuts where pipeline ranks hold several stages each, whatever its operators.

Segments that are alike in all their numbers are of one type. With d[k,p] of the n_p segments of type p on stage k, of
which a[k,p] are recomputed in full and b[k,p] - a[k,p] selectively, in fractions:

    minimise T
    T  ≥  Σ counts·(seconds(d, a, b) + e) + messages       for each path through the schedule       _Rows.path
    Σ_k d[k,p] = n_p;   Σ_p d[k,p] ≥ 1;   0 ≤ a ≤ b ≤ d                                             _Rows.divide
    d[k,p]  ≤  segments of the type that leave one at least for every stage before, and after       _Rows.reachable
    Σ_{k on ρ} h_k·(kept(d, a, b) + x_k) + states(d, y) + least buffers and transients  ≤  wall     _Rows.moment
                                                           each rank ρ, moments h that hold most
    e_k  ≥  Σ_p (B_p(λ) - T_p - λ·K_p - σ·S_p)·(d - b)[k,p] - λ·x_k - σ·y_k     for each price λ    _Rows.leaner_than

Seconds T_p are the fastest operators', bytes K_p kept and S_p of parameters the leanest ones'. B_p(λ) is the least time
+ λ·kept bytes + σ·bytes of parameters of a segment over all its operators (``bounds.alone``): d - b segments that
recompute nothing, and together keep x bytes and have y bytes of parameters above the leanest, take e seconds more than
the fastest. Of each stage the message, buffers and constants are the least of the
segments that it can begin with or hold. A rank's memory rounds to no fraction of a segment: where the bound in
fractions leaves a gap, the segments of each type that a rank holds (of few stages: that each holds), and those that it
recomputes, are whole numbers.

All segments of a block have the same operators, recomputed or not: where those of the heaviest block keep at most K'
bytes, it is all d of its segments that take so much more, with λ·(K' - K) for each in the place of λ·x. What these
bytes may be is divided into ranges, the one with the least bound again and again (``Leaner.within``).

The paths are those of ``known_paths``, and the longest through the schedule with each answer's seconds, for as long as
these raise the bound. Where no backward is split the known ones run forward and backward equally often, so that it is
their sum that counts; of one that doesn't, e counts as often as the rarer of the two.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.pricing.chunks import rank_paths, splits
from autoplan.search.linear import Linear
from autoplan.search.pieces import FULL, PART, Pieces, even_stages

NODES = 50           # of the search for whole numbers
FEW_MOMENTS = 2      # of a rank's, those with most in flight
FEW_STAGES = 16      # whose segments are whole numbers each, not their ranks' totals alone
CHUNKS = 4           # on which paths turn from one rank to another
SPARE = 0.3          # of the wall, that even stages of the fastest leave: then bytes don't matter
ENOUGH = 1e-3        # a relative gap of that one that is as good as none
ROUNDS = 16          # of paths that answers in fractions lead to
STALLED = 2          # such rounds that may raise nothing, one after another
RANGES = 24          # of bytes kept that are looked at
NARROW = 8           # parts of the spread that a range is divided into before whole numbers are sought
WHOLE_STAGES = 16    # of more stages whole numbers take seconds to say little
COLUMNS = (
    "forward_s", "backward_s", "weights_s", "whole_s", "full_s", "part_s", "states", "kept", "inputs", "selective",
    "rebuilt", "repeated",
)  # fmt: skip


@dataclass(frozen=True)
class Leaner:
    """What operators that keep less take.

    prices    [λ] seconds a byte kept, the first none
    state     [λ] seconds a byte of parameters beside it
    share     bytes of states that stand for each of these
    slower_s  [segments, λ]: B_p(λ) - T_p - λ·K_p - σ·S_p
    heaviest  [segments] whether a segment is of the block that keeps most in all, of those that may be recomputed
    spread    bytes that the fastest operators of such a one keep above the leanest
    most      bytes that such a one keeps above the leanest at most; None: it isn't said
    """

    prices: np.ndarray
    state: np.ndarray
    share: float
    slower_s: np.ndarray
    heaviest: np.ndarray
    spread: float
    most: float | None = None

    def within(self, pieces: Pieces, low: float, high: float) -> tuple[Pieces, Leaner]:
        """The same where segments of the heaviest block keep so many bytes above the leanest, at least and at most."""
        slower_s = self.slower_s.copy()
        slower_s[self.heaviest] -= self.prices * low
        kept = pieces.kept + low * self.heaviest
        most = high - low if np.isfinite(high) else None
        return replace(pieces, kept=kept), replace(self, slower_s=slower_s, most=most)


def least_chunks_s(
    pieces: Pieces, leaner: Leaner | None = None, limit_s: float = np.inf, *, whole: bool = False
) -> float:
    """Seconds that no cuts of the chain undercut, whatever of it is recomputed and however leanly its operators run;
    ``limit_s`` is enough.

    pieces  of the fastest operators, holding what the leanest do
    leaner  None: no bytes matter
    whole   as tight as is known, which takes many times as long
    """
    if len(pieces) < pieces.stages:
        return np.inf
    paths = list(known_paths(pieces))
    bound_s = _in_fractions_s(pieces, leaner, limit_s, paths, rounds=ROUNDS if whole else 1)
    if not whole or bound_s >= limit_s:
        return bound_s
    if leaner is None or not leaner.heaviest.any() or pieces.recompute != "auto":
        return max(bound_s, _in_whole_numbers_s(pieces, leaner, paths))
    return _in_ranges_s(pieces, leaner, limit_s, paths, bound_s)


def _in_ranges_s(
    pieces: Pieces, leaner: Leaner, limit_s: float, paths: list[np.ndarray], bound_s: float
) -> float:
    """The bytes that the heaviest block keeps divided into ranges, the one with the least bound first; where it is
    narrow, in whole numbers."""
    ends = (0.0, leaner.spread, np.inf) if leaner.spread > 0 else (0.0, np.inf)
    queue = [(bound_s, low, high, False) for low, high in itertools.pairwise(ends)]
    heapq.heapify(queue)
    for _ in range(RANGES):
        bound_s, low, high, settled = queue[0]
        if bound_s >= limit_s or settled:
            break
        heapq.heappop(queue)
        if np.isinf(high) or high - low <= leaner.spread / NARROW:
            whole_s = _in_whole_numbers_s(*leaner.within(pieces, low, high), paths)
            heapq.heappush(queue, (max(bound_s, whole_s), low, high, True))
            continue
        middle = (low + high) / 2
        for part in ((low, middle), (middle, high)):
            part_s = _in_fractions_s(*leaner.within(pieces, *part), limit_s, paths)
            heapq.heappush(queue, (max(bound_s, part_s), *part, False))
    return queue[0][0]


def _in_fractions_s(
    pieces: Pieces, leaner: Leaner | None, limit_s: float, paths: list[np.ndarray], rounds: int = 1
) -> float:
    """In fractions of segments; ``paths`` grow by those that its answers lead to, in so many rounds."""
    rows, bound_s, stalled = _Rows(pieces, leaner, paths), 0.0, 0
    for _ in range(rounds):
        found = rows.linear().solved(enough=limit_s * rows.scale)
        stalled = 0 if found.bound / rows.scale > bound_s * (1 + ENOUGH) else stalled + 1
        bound_s = max(bound_s, found.bound / rows.scale)
        if rounds == 1 or found.values is None or stalled > STALLED or splits(pieces.schedule):
            break
        paths.append(pieces.rounds.script.path(rows.durations_s(found.values)).counts)
        rows = _Rows(pieces, leaner, paths)
    return bound_s


def _in_whole_numbers_s(pieces: Pieces, leaner: Leaner | None, paths: list[np.ndarray]) -> float:
    if pieces.stages > WHOLE_STAGES:
        return 0.0
    rows = _Rows(pieces, leaner, paths)
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


class _Rows:
    """The rows under construction. Variables: T; d [v·d, types]; a and b [v·d, types that may be recomputed]; e, x
    and y [v·d]; totals of ranks. Bytes are in walls, seconds in those of the first path."""

    def __init__(self, pieces: Pieces, leaner: Leaner | None, paths: Sequence[np.ndarray]) -> None:
        self.pieces, self.leaner = pieces, leaner
        self.share = 0.0 if leaner is None else leaner.share
        table = np.stack([getattr(pieces, name).astype(float) for name in COLUMNS])
        if leaner is not None:
            table = np.concatenate([table, leaner.slower_s.T, leaner.heaviest[None]])
        distinct, kinds, counts = np.unique(table, axis=1, return_inverse=True, return_counts=True)
        self.types, self.sizes = dict(zip(COLUMNS, distinct, strict=False)), counts
        self.kinds = kinds.reshape(-1)
        self.slower_s, self.heaviest = distinct[len(COLUMNS) : -1].T, distinct[-1] * (leaner is not None)
        auto = pieces.recompute == "auto" and leaner is not None
        self.again = np.flatnonzero(self.types["repeated"] * auto)
        stages, types, again = pieces.stages, len(counts), len(self.again)
        self.d = 1 + np.arange(stages * types).reshape(stages, types)
        self.a = 1 + self.d.size + np.arange(stages * again).reshape(stages, again)
        self.b = self.a + self.a.size
        self.e = 1 + self.d.size + 2 * self.a.size + np.arange(stages)
        self.x, self.y = self.e + stages, self.e + 2 * stages
        self.many = 1 + self.d.size + 2 * self.a.size + 3 * stages
        self.rows: list[np.ndarray] = []
        self.least: list[np.ndarray] = []
        self.paths = paths
        self.late = len(pieces) - pieces.stages  # by how many segments a stage can begin later than if all were single
        self.messages_s = np.array([0.0, *(self.least_of(pieces.messages_s[k], k) for k in range(1, stages))])
        spent = self.seconds(self.paths[0]) @ (counts / stages)
        self.scale = 1.0 / float(spent.sum())

    def of(self, name: str) -> np.ndarray:
        """[types]"""
        return self.types[name]

    def add(self, rows: np.ndarray, least: np.ndarray) -> None:
        """rows·v ≥ least"""
        self.rows.append(rows)
        self.least.append(np.asarray(least, dtype=float))

    def linear(self) -> Linear:
        self.divide()
        for path in self.paths:
            self.path(path)
        if self.leaner is not None:
            self.leaner_than(self.leaner)
            for rank, moments in enumerate(self.pieces.rounds.held):
                for held in moments[:FEW_MOMENTS]:
                    self.moment(rank, held)
        few = self.pieces.stages <= FEW_STAGES
        totals = 0 if few else self.totals()
        rows = np.concatenate([np.pad(r, ((0, 0), (0, totals))) if r.shape[1] == self.many else r for r in self.rows])
        numbers = np.arange(self.many + totals)
        integers = (numbers >= 1) & (numbers < self.e[0]) if few else numbers >= self.many
        high = np.full(len(integers), np.inf)
        high[self.d] = self.reachable()
        return Linear(rows, np.concatenate(self.least), np.zeros(len(integers)), high, integers)

    def reachable(self) -> np.ndarray:
        """[v·d, types]: how many segments a stage can hold, with one at least on each stage before it and after."""
        stages, spare = self.pieces.stages, len(self.pieces) - self.pieces.stages
        is_kind = np.cumsum(np.pad(self.kinds[:, None] == np.arange(len(self.sizes)), ((1, 0), (0, 0))), axis=0)
        first = np.arange(stages)
        return np.asarray(is_kind[first + spare + 1] - is_kind[first])

    def blank(self, count: int) -> np.ndarray:
        return np.zeros((count, self.many))

    def divide(self) -> None:
        """Every segment is somewhere; no stage is empty; none is recomputed that isn't there."""
        each = self.blank(len(self.sizes))
        for p in range(len(self.sizes)):
            each[p, self.d[:, p]] = 1.0
        self.add(each, self.sizes)
        self.add(-each, -self.sizes)
        some = self.blank(self.pieces.stages)
        for k, mine in enumerate(self.d):
            some[k, mine] = 1.0
        self.add(some, np.ones(len(some)))
        cells = np.arange(self.a.size)
        for more, fewer in ((self.b, self.a), (self.d[:, self.again], self.b)):
            rows = self.blank(self.a.size)
            rows[cells, more.ravel()] = 1.0
            rows[cells, fewer.ravel()] = -1.0
            self.add(rows, np.zeros(self.a.size))

    def path(self, counts: np.ndarray) -> None:
        """T ≥ the seconds of a path; counts: [3, v·d]."""
        p, scaled = self.pieces, counts * self.scale
        row = self.blank(1)[0]
        row[0] = 1.0
        row[self.d] = -self.seconds(scaled)
        again = -np.where((np.arange(p.stages) == 0) & splits(p.schedule), scaled[2], scaled[1])[:, None]
        full_s, part_s = self.of("full_s")[self.again], self.of("part_s")[self.again]
        row[self.a], row[self.b] = again * (full_s - part_s), again * part_s
        row[self.e] = -np.minimum(counts[0], counts[1])
        self.add(row[None], ((scaled[0, 1:] + scaled[1, :-1]) * self.messages_s[1:]).sum(keepdims=True))

    def seconds(self, counts: np.ndarray) -> np.ndarray:
        """[v·d, types]: of a segment of each type on each stage, its actions as often as counted."""
        chosen = {FULL: "full_s", PART: "part_s"}.get(self.pieces.recompute)
        pinned_s = self.of(chosen) * self.of("repeated") if chosen else 0.0
        forward, backward, weights = self.of("forward_s"), self.of("backward_s") + pinned_s, self.of("weights_s")
        f, b, w = (row[:, None] for row in counts)
        if not splits(self.pieces.schedule):
            return f * forward + b * backward
        found = f * forward + b * (backward - weights) + w * weights
        found[0] = f[0] * forward + w[0] * (self.of("whole_s") + pinned_s)
        return np.asarray(found)

    def durations_s(self, values: np.ndarray) -> np.ndarray:
        """[3, v·d]: seconds of each stage's actions in an answer, of a schedule that doesn't split the backward."""
        chosen = {FULL: "full_s", PART: "part_s"}.get(self.pieces.recompute)
        backward_s = self.of("backward_s") + (self.of(chosen) * self.of("repeated") if chosen else 0.0)
        spent = np.zeros((3, self.pieces.stages))
        spent[0], spent[1] = values[self.d] @ self.of("forward_s"), values[self.d] @ backward_s
        full_s, part_s = self.of("full_s")[self.again], self.of("part_s")[self.again]
        spent[1] += values[self.a] @ (full_s - part_s) + values[self.b] @ part_s + values[self.e] / self.scale
        spent[0, 1:] += self.messages_s[1:]
        spent[1, :-1] += self.messages_s[1:]
        return spent

    def least_of(self, column: np.ndarray, stage: int) -> float:
        """Of the segments that a stage can begin with."""
        return float(column[stage : stage + self.late + 1].min())

    def leaner_than(self, leaner: Leaner) -> None:
        """What keeping less costs each stage; nothing where all that may is recomputed."""
        if self.pieces.recompute in (FULL, PART):
            return
        unit, price, state = self.pieces.wall * self.scale, leaner.prices, leaner.state
        for number in range(len(price)):
            slower = self.slower_s[:, number] * self.scale
            each_s, kept_s, state_s = slower * self.of("repeated"), price[number] * unit, state[number] * unit
            rows = [self.slower_than(each_s, slower[self.again], kept_s, state_s)]
            if leaner.most is not None:  # the heaviest block's do, whatever is recomputed
                all_s = (slower - price[number] * leaner.most * self.scale) * self.heaviest
                rows.append(self.slower_than(all_s, 0.0 * slower[self.again], 0.0, state_s))
            for found in rows:
                self.add(found, np.zeros(len(found)))

    def slower_than(self, each_s: np.ndarray, again_s: np.ndarray, kept: float, state: float) -> np.ndarray:
        """e ≥ each_s·d - again_s·b - kept·x - state·y of each stage"""
        rows = self.blank(self.pieces.stages)
        for k in range(self.pieces.stages):
            rows[k, self.e[k]], rows[k, self.x[k]], rows[k, self.y[k]] = 1.0, kept, state
            rows[k, self.d[k]], rows[k, self.b[k]] = -each_s, again_s
        return rows

    def moment(self, rank: int, held: np.ndarray) -> None:
        """A rank's bytes at a moment are within the wall."""
        p, mine = self.pieces, np.arange(rank, self.pieces.stages, self.pieces.ranks)
        chosen = {FULL: "inputs", PART: "selective"}.get(p.recompute, "kept")
        kept = np.where(self.of("repeated") > 0, self.of(chosen), self.of("kept"))
        row, count = self.blank(1)[0], held[:, None].astype(float)
        row[self.d[mine]] = -(self.of("states") + count * kept) / p.wall
        full, part, whole = (self.of(name)[self.again] for name in ("inputs", "selective", "kept"))
        most = max(1.0, len(p) - (p.stages - len(mine)))
        again, rebuilt = whole.min(initial=0.0) / most, self.of("rebuilt")[self.again].min(initial=0.0) / most
        row[self.a[mine]] = (count * (part - full) - max(0.0, again - rebuilt)) / p.wall
        row[self.b[mine]] = (count * (whole - part) - min(again, rebuilt)) / p.wall
        row[self.x[mine]], row[self.y[mine]] = -held, -self.share
        self.add(row[None], np.array([self.least_beside(mine, held) / p.wall - 1.0]))

    def least_beside(self, mine: np.ndarray, held: np.ndarray) -> float:
        """Bytes of buffers and transients that a rank holds whichever segments it has. Of as many distinct ones as it
        has stages the largest is at least so large."""
        p, last = self.pieces, self.pieces.stages - 1
        beside = 0.0
        for column in (p.working, p.gathered):
            beside += max(float(np.sort(column)[len(mine) - 1]), *(self.least_of(column, k) for k in mine.tolist()))
        for count, k in zip(held.tolist(), mine.tolist(), strict=True):
            beside += count * self.least_of(p.constants, k)
            beside += self.least_of(p.received, k) if k else 0.0
            beside += self.least_of(p.sent, k + 1) + count * self.least_of(p.leaving, k + 1) if k < last else 0.0
        return beside

    def totals(self) -> int:
        """Rows that make totals of each rank equal to further variables; how many of these there are."""
        p, sums = self.pieces, []
        for rank in range(p.ranks):
            mine = np.arange(rank, p.stages, p.ranks)
            cells = [self.d[mine, kind] for kind in np.flatnonzero(self.sizes > 1)]
            sums += [*cells, *self.a[mine].T, *self.b[mine].T]
        rows = np.zeros((len(sums), self.many + len(sums)))
        for number, cell in enumerate(sums):
            rows[number, cell], rows[number, self.many + number] = 1.0, -1.0
        self.add(rows, np.zeros(len(sums)))
        self.add(-rows, np.zeros(len(sums)))
        return len(sums)
