"""The linear program over the stages of pipeline ranks that hold several each, whatever their operators: its rows.

Segments that are alike in all their numbers are of one type. With d[k,p] of the n_p segments of type p on stage k, of
which a[k,p] are recomputed in full and b[k,p] - a[k,p] selectively, in fractions:

    minimise T
    T  ≥  Σ counts·(seconds(d, a, b) + e) + messages       for each path through the schedule       Rows.path
    Σ_k d[k,p] = n_p;   Σ_p d[k,p] ≥ 1;   0 ≤ a ≤ b ≤ d                                             Rows.divide
    d[k,p]  ≤  segments of the type that leave one at least for every stage before, and after       Rows.reachable
    Σ_{k on ρ} h_k·(kept(d, a, b) + x_k) + states(d, y) + least buffers and transients  ≤  wall     Rows.moment
                                                           each rank ρ, moments h that hold most
    e_k  ≥  Σ_p (B_p(λ) - T_p - λ·K_p - σ·S_p)·(d - b)[k,p] - λ·x_k - σ·y_k     for each price λ    Rows.leaner_than
    e_k  ≥  Σ_p s_p·d[k,p]                                                                          Rows.leaner_than
    -Σ_p φ_p·d[k,p]  ≤  f_k  ≤  e_k + Σ_p ψ_p·d[k,p]                                                Rows.tilted

Seconds T_p are the fastest operators', bytes K_p kept and S_p of parameters the leanest ones'. B_p(λ) is the least time
+ λ·kept bytes + σ·bytes of parameters of a segment over all its operators (``bounds.alone``): d - b segments that
recompute nothing, and together keep x bytes and have y bytes of parameters above the leanest, take e seconds more than
the fastest, f of these in the forward and e - f in the backward; s_p is what is sure of it (``cells``). Other operators
than the fastest may be quicker in one of both, by no more than φ and ψ. Of each stage the message, buffers and
constants are the least of the segments that it can begin with or hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.cost.interleaved import splits
from autoplan.search.inter_op.chain_costs import FULL, PART, Pieces
from autoplan.solver.linear import Linear

FEW_MOMENTS = 2      # of a rank's, those with most in flight
FEW_STAGES = 8       # whose segments are whole numbers each, not their ranks' totals alone
LAST_STAGES = 2      # whose segments are whole numbers each, however many stages there are
FEW_ACTIONS = 100    # of schedules in which those of more stages are, too
COLUMNS = (
    "forward_s", "backward_s", "weights_s", "whole_s", "full_s", "part_s", "states", "kept", "inputs", "selective",
    "rebuilt", "repeated",
)  # fmt: skip


@dataclass(frozen=True)
class Tilt:
    """[segments] seconds by which some operators may be quicker than the fastest in the forward alone, φ, and in the
    backward alone, ψ."""

    forward_s: np.ndarray
    backward_s: np.ndarray


@dataclass(frozen=True)
class Leaner:
    """What operators that keep less take.

    prices    [λ] seconds a byte kept, the first none
    state     [λ] seconds a byte of parameters beside it
    share     bytes of states that stand for each of these
    slower_s  [segments, λ]: B_p(λ) - T_p - λ·K_p - σ·S_p
    sure_s    [segments] by what a segment is slower in any case, recomputed or not
    """

    prices: np.ndarray
    state: np.ndarray
    share: float
    slower_s: np.ndarray
    sure_s: np.ndarray

    def within(
        self, pieces: Pieces, sure_s: np.ndarray, kept: np.ndarray, parameters: np.ndarray
    ) -> tuple[Pieces, Leaner]:
        """The same where segments are that much slower at least, and keep and have so many bytes more than the leanest
        [segments]."""
        slower_s = self.slower_s - self.prices * kept[:, None] - self.state * parameters[:, None]
        held = replace(pieces, kept=pieces.kept + kept, states=pieces.states + self.share * parameters)
        return held, replace(self, slower_s=np.maximum(slower_s, sure_s[:, None]), sure_s=sure_s)

    def unpriced(self) -> Leaner:
        """The same without prices: what a segment is sure to take is all that is said."""
        return replace(self, prices=self.prices[:1], state=self.state[:1], slower_s=self.slower_s[:, :1])


class Rows:
    """The rows under construction. Variables: T; d [v·d, types]; a and b [v·d, types that may be recomputed]; e, x,
    y and f [v·d]; totals of ranks. Bytes are in walls, seconds in those of the first path.

    paths  [3, v·d] each: how often one runs each stage's actions
    tilt   None: all operators take the forward and the backward as the fastest do
    """

    def __init__(
        self, pieces: Pieces, leaner: Leaner | None, paths: Sequence[np.ndarray], tilt: Tilt | None = None
    ) -> None:
        self.pieces, self.leaner = pieces, leaner
        self.share = 0.0 if leaner is None else leaner.share
        table = np.stack([getattr(pieces, name).astype(float) for name in COLUMNS])
        slower_s = np.zeros((len(pieces), 0)) if leaner is None else leaner.slower_s
        sure_s = np.zeros(len(pieces)) if leaner is None else leaner.sure_s
        tilts = np.zeros((2, len(pieces))) if tilt is None else np.stack([tilt.forward_s, tilt.backward_s])
        table = np.concatenate([table, slower_s.T, sure_s[None], tilts])
        distinct, kinds, counts = np.unique(table, axis=1, return_inverse=True, return_counts=True)
        self.types, self.sizes = dict(zip(COLUMNS, distinct, strict=False)), counts
        self.kinds = kinds.reshape(-1)
        self.slower_s, self.sure_s, self.tilts = distinct[len(COLUMNS) : -3].T, distinct[-3], distinct[-2:]
        auto = pieces.recompute == "auto" and leaner is not None
        self.again = np.flatnonzero(self.types["repeated"] * auto)
        stages, types, again = pieces.stages, len(counts), len(self.again)
        self.d = 1 + np.arange(stages * types).reshape(stages, types)
        self.a = 1 + self.d.size + np.arange(stages * again).reshape(stages, again)
        self.b = self.a + self.a.size
        self.e = 1 + self.d.size + 2 * self.a.size + np.arange(stages)
        self.x, self.y, self.f = (self.e + n * stages for n in (1, 2, 3))
        self.many = 1 + self.d.size + 2 * self.a.size + 4 * stages
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

    def linear(self, *, tilted: bool = False) -> Linear:
        """tilted: whether it matters where e is spent, whatever the paths are."""
        self.divide()
        tilted = tilted or any(self.tells(path) for path in self.paths)
        if tilted:
            self.tilted()
        for path in self.paths:
            self.path(path)
        if self.leaner is not None:
            self.leaner_than(self.leaner)
            for rank, moments in enumerate(self.pieces.rounds.held):
                for held in moments[:FEW_MOMENTS]:
                    self.moment(rank, held)
        few = self.pieces.stages <= FEW_STAGES or self.pieces.rounds.script.kinds.size <= FEW_ACTIONS
        totals = 0 if few else self.totals()
        rows = np.concatenate([np.pad(r, ((0, 0), (0, totals))) if r.shape[1] == self.many else r for r in self.rows])
        numbers = np.arange(self.many + totals)
        integers = (numbers >= 1) & (numbers < self.e[0]) if few else numbers >= self.many
        integers[self.d[-LAST_STAGES:]] = True
        low, high = np.zeros(len(integers)), np.full(len(integers), np.inf)
        high[self.d], high[self.f] = self.reachable(), np.inf if tilted else 0.0
        low[self.f] = -np.inf if tilted else 0.0
        return Linear(rows, np.concatenate(self.least), low, high, integers)

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

    def tells(self, counts: np.ndarray) -> bool:
        """Whether a path runs forward and backward unequally often, so that it matters where e is spent. How a split
        backward takes it isn't said: there it counts as often as the rarest of its parts."""
        return not splits(self.pieces.schedule) and bool((counts[0] != counts[1]).any())

    def tilted(self) -> None:
        """What the forward can take of e, and save beside."""
        stages = self.pieces.stages
        ahead, behind = self.blank(stages), self.blank(stages)
        for k in range(stages):
            ahead[k, self.f[k]], behind[k, self.f[k]], behind[k, self.e[k]] = 1.0, -1.0, 1.0
            ahead[k, self.d[k]], behind[k, self.d[k]] = self.tilts * self.scale
        self.add(ahead, np.zeros(stages))
        self.add(behind, np.zeros(stages))

    def path(self, counts: np.ndarray) -> None:
        """T ≥ the seconds of a path; counts: [3, v·d]."""
        p, scaled = self.pieces, counts * self.scale
        row = self.blank(1)[0]
        row[0] = 1.0
        row[self.d] = -self.seconds(scaled)
        again = -np.where((np.arange(p.stages) == 0) & splits(p.schedule), scaled[2], scaled[1])[:, None]
        full_s, part_s = self.of("full_s")[self.again], self.of("part_s")[self.again]
        row[self.a], row[self.b] = again * (full_s - part_s), again * part_s
        if splits(p.schedule):
            rarest = np.minimum(counts[0], counts[2])
            row[self.e] = -np.where(np.arange(p.stages) == 0, rarest, np.minimum(rarest, counts[1]))
        else:
            row[self.e], row[self.f] = -counts[1], counts[1] - counts[0]
        self.add(row[None], ((scaled[0, 1:] + scaled[1, :-1]) * self.messages_s[1:]).sum(keepdims=True))

    def seconds(self, counts: np.ndarray) -> np.ndarray:
        """[v·d, types]: of a segment of each type on each stage, its actions as often as counted."""
        (forward, backward), weights = self.spent_s(), self.of("weights_s")
        f, b, w = (row[:, None] for row in counts)
        if not splits(self.pieces.schedule):
            return f * forward + b * backward
        found = f * forward + b * (backward - weights) + w * weights
        found[0] = f[0] * forward + w[0] * (self.of("whole_s") + backward - self.of("backward_s"))
        return np.asarray(found)

    def spent_s(self) -> tuple[np.ndarray, np.ndarray]:
        """[types]: seconds of a segment's forward and backward, with what is pinned to be recomputed."""
        chosen = {FULL: "full_s", PART: "part_s"}.get(self.pieces.recompute)
        pinned_s = self.of(chosen) * self.of("repeated") if chosen else 0.0
        return self.of("forward_s"), self.of("backward_s") + pinned_s

    def arriving_s(self) -> np.ndarray:
        """[2, v·d]: of the message that a stage's forward and its backward receive."""
        return np.stack([self.messages_s, np.append(self.messages_s[1:], 0.0)])

    def durations_s(self, values: np.ndarray) -> np.ndarray:
        """[3, v·d]: seconds of each stage's actions in an answer, of a schedule that doesn't split the backward."""
        forward_s, backward_s = self.spent_s()
        full_s, part_s = self.of("full_s")[self.again], self.of("part_s")[self.again]
        spent = np.zeros((3, self.pieces.stages))
        spent[0] = values[self.d] @ forward_s + values[self.f] / self.scale
        spent[1] = values[self.d] @ backward_s + (values[self.e] - values[self.f]) / self.scale
        spent[1] += values[self.a] @ (full_s - part_s) + values[self.b] @ part_s
        spent[:2] += self.arriving_s()
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
            found = self.slower_than(each_s, slower[self.again], kept_s, state_s)
            self.add(found, np.zeros(len(found)))
        if self.sure_s.any():
            found = self.slower_than(self.sure_s * self.scale, np.zeros(len(self.again)), 0.0, 0.0)
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
