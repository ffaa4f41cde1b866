"""What no plan undercuts where pipeline ranks hold several stages each, whatever its operators.

Segments that are alike in all their numbers are of one type. With d[k,p] of the n_p segments of type p on stage k, of
which a[k,p] are recomputed in full and b[k,p] - a[k,p] selectively, in fractions:

    minimise T
    T  ≥  Σ counts·(seconds(d, a, b) + e) + messages       for each path through the schedule       _Rows.path
    Σ_k d[k,p] = n_p;   Σ_p d[k,p] ≥ 1;   0 ≤ a ≤ b ≤ d                                             _Rows.divide
    d[k,p]  ≤  segments of the type that leave one at least for every stage before, and after       _Rows.reachable
    Σ_{k on ρ} h_k·(kept(d, a, b) + x_k) + states + the least of buffers and transients  ≤  wall    _Rows.moment
                                                           each rank ρ, moments h that hold most
    e_k  ≥  Σ_p (B_p(λ) - T_p - λ·K_p)·(d - b)[k,p] - λ·x_k          for each price λ               _Rows.leaner

Seconds T_p are the fastest operators', bytes K_p the leanest ones'. B_p(λ) is the least time + λ·kept bytes of a
segment over all its operators (``bounds.alone``): d - b segments that recompute nothing and together keep x bytes above
the leanest take e seconds more than the fastest. A rank's memory rounds to no fraction of a segment: where the bound in
fractions leaves a gap, the segments of each type that a rank holds (of few stages: that each holds), and those that it
recomputes, are whole numbers.

The paths are those of ``known_paths``. Where no backward is split each runs forward and backward equally often, so that
it is their sum that counts; of one that doesn't, e counts as often as the rarer of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

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
COLUMNS = (
    "forward_s", "backward_s", "weights_s", "whole_s", "full_s", "part_s", "states", "kept", "inputs", "selective",
    "rebuilt", "repeated",
)  # fmt: skip


@dataclass(frozen=True)
class Leaner:
    """What operators that keep less take.

    prices    [λ] seconds a byte kept
    slower_s  [segments, λ]: B_p(λ) - T_p - λ·K_p
    """

    prices: np.ndarray
    slower_s: np.ndarray


def least_chunks_s(
    pieces: Pieces, leaner: Leaner | None = None, limit_s: float = np.inf, *, whole: bool = False
) -> float:
    """Seconds that no cuts of the chain undercut, whatever of it is recomputed and however leanly its operators run;
    ``limit_s`` is enough.

    pieces  of the fastest operators, holding what the leanest do
    leaner  None: no bytes matter
    whole   with the totals of each rank in whole numbers, which takes several times as long
    """
    if len(pieces) < pieces.stages:
        return np.inf
    rows = _Rows(pieces, leaner)
    program = rows.linear()
    bound_s = program.bound(enough=limit_s * rows.scale) / rows.scale
    if whole and bound_s < limit_s and program.integers.any():
        bound_s = max(bound_s, program.bound(whole=True, nodes=NODES, gap=ENOUGH) / rows.scale)
    return bound_s


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
    """The rows under construction. Variables: T; d [v·d, types]; a and b [v·d, types that may be recomputed]; e and x
    [v·d]; totals of ranks. Bytes are in walls, seconds in those of the first path."""

    def __init__(self, pieces: Pieces, leaner: Leaner | None) -> None:
        self.pieces, self.leaner = pieces, leaner
        table = np.stack([getattr(pieces, name).astype(float) for name in COLUMNS])
        if leaner is not None:
            table = np.concatenate([table, leaner.slower_s.T])
        distinct, kinds, counts = np.unique(table, axis=1, return_inverse=True, return_counts=True)
        self.types, self.sizes = dict(zip(COLUMNS, distinct, strict=False)), counts
        self.kinds = kinds.reshape(-1)
        self.slower_s = distinct[len(COLUMNS) :].T
        auto = pieces.recompute == "auto" and leaner is not None
        self.again = np.flatnonzero(self.types["repeated"] * auto)
        stages, types, again = pieces.stages, len(counts), len(self.again)
        self.d = 1 + np.arange(stages * types).reshape(stages, types)
        self.a = 1 + self.d.size + np.arange(stages * again).reshape(stages, again)
        self.b = self.a + self.a.size
        self.e = 1 + self.d.size + 2 * self.a.size + np.arange(stages)
        self.x = self.e + stages
        self.many = 1 + self.d.size + 2 * self.a.size + 2 * stages
        self.rows: list[np.ndarray] = []
        self.least: list[np.ndarray] = []
        self.paths = known_paths(pieces)
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
        messages = p.messages_s.min(axis=1)
        self.add(row[None], ((scaled[0, 1:] + scaled[1, :-1]) * messages[1:]).sum(keepdims=True))

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

    def leaner_than(self, leaner: Leaner) -> None:
        """What keeping less costs each stage; nothing where all that may is recomputed."""
        if self.pieces.recompute in (FULL, PART):
            return
        unit = self.pieces.wall
        for number, price in enumerate(leaner.prices.tolist()):
            rows, slower = self.blank(self.pieces.stages), self.slower_s[:, number] * self.scale
            for k in range(self.pieces.stages):
                rows[k, self.e[k]], rows[k, self.x[k]] = 1.0, price * unit * self.scale
                rows[k, self.d[k]] = -slower * self.of("repeated")
                rows[k, self.b[k]] = slower[self.again]
            self.add(rows, np.zeros(len(rows)))

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
        row[self.x[mine]] = -held
        self.add(row[None], np.array([self.least_beside(mine, held) / p.wall - 1.0]))

    def least_beside(self, mine: np.ndarray, held: np.ndarray) -> float:
        """Bytes of buffers and transients that a rank holds whichever segments it has: of as many distinct ones as it
        has stages the largest is at least so large."""
        p = self.pieces
        beside = sum(float(np.sort(column)[len(mine) - 1]) for column in (p.working, p.gathered))
        beside += float(held.sum() * p.constants.min())
        received, sent = p.received[1:].min(initial=np.inf), p.sent[1:].min(initial=np.inf)
        beside += sum(float(received) * (k > 0) + float(sent) * (k < p.stages - 1) for k in mine.tolist())
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
