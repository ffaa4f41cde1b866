"""What no plan undercuts where pipeline ranks hold several stages each, whatever its operators.

The program of ``chunk_program`` for the fastest operators' seconds and the leanest ones' bytes, in fractions of
segments, and beside it what keeping less costs. With B_b(λ) the least time + λ·kept bytes of a segment of block b over
all its operators (``bounds.alone``), T_b the fastest's time and K_b what the leanest keep, d - b segments of a stage
that recompute nothing and together keep x bytes above the leanest take e seconds more than the fastest,

    e  ≥  Σ_b (B_b(λ) - T_b - λ·K_b)·(d - b)  -  λ·x                     for each price λ            Bound.leaner_than

A rank's memory rounds to no fraction of a segment: where the bound in fractions leaves a gap, the segments of each run
that a rank holds, and those that it recomputes, are whole numbers again                             Bound.whole

Every path of ``rank_paths`` is in it. They come within a percent of the longest of all paths where stages are nearly
alike, and each runs forward and backward equally often, so that it is their sum that counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pulp

from autoplan.pricing.chunks import rank_paths, splits
from autoplan.search.chunk_program import Master, Sum, proven
from autoplan.search.pieces import Pieces, even_stages
from autoplan.search.solve import pick_solver

TIME_LIMIT_S = 30.0  # of what takes far less: a backstop
WHOLE_S = 1.0        # seconds for the program in whole numbers
FEW_MOMENTS = 2      # of a rank's, those with most in flight
SPARE = 0.3          # of the wall, that even stages of the fastest leave: then bytes don't matter
ENOUGH = 1e-3        # a relative gap of that one that is as good as none


@dataclass(frozen=True)
class Leaner:
    """What operators that keep less take.

    prices    [λ] seconds a byte kept
    slower_s  [segments, λ]: B_b(λ) - T_b - λ·K_b
    """

    prices: np.ndarray
    slower_s: np.ndarray


class Bound(Master):
    """The relaxed program, which grows by paths."""

    def __init__(self, pieces: Pieces, scale_s: float) -> None:
        self.totals: list[pulp.LpVariable] = []
        super().__init__(pieces, scale_s)

    def variable(self, high: float, least: float = 0) -> pulp.LpVariable:
        return self.lp.make(least, high)

    def leaner_than(self, leaner: Leaner) -> None:
        """e and x of each stage; none where all that may is recomputed."""
        if self.pieces.recompute not in ("auto", "none"):
            return
        slower = leaner.slower_s[self.starts[:-1]]
        for k in range(self.pieces.stages):
            slow, more = (self.lp.make() for _ in range(2))
            self.leaner[k] = slow, more
            for j, price in enumerate(leaner.prices.tolist()):
                column = slower[:, j] * self.of("repeated") * self.scale
                total = Sum().add(slow).add(more, price * self.bytes_unit() * self.scale)
                self.moved(total, k, -column)
                for r in self.runs:
                    if (k, r) in self.b:
                        total.add(self.b[k, r], column[r])
                self.at_least(total)

    def whole(self) -> None:
        """The totals of each rank as whole numbers."""
        for rank in range(self.pieces.ranks):
            mine = range(rank, self.pieces.stages, self.pieces.ranks)
            for r in self.runs:
                if self.sizes[r] < 2:
                    continue
                held = Sum()
                for k in mine:
                    held.add(self.q[k + 1][r]).add(self.q[k][r], -1.0)
                self.counted(held)
                for counts in (self.a, self.b):
                    cells = [counts[k, r] for k in mine if (k, r) in counts]
                    if cells:
                        total = Sum()
                        for cell in cells:
                            total.add(cell)
                        self.counted(total)

    def counted(self, total: Sum) -> None:
        """A whole number that a total is equal to."""
        if not total.terms:
            return
        made = self.lp.make(category=pulp.LpInteger)
        self.totals.append(made)
        self.lp += total.add(made, -1.0).expression() == 0

    def relaxed(self) -> float:
        """The bound in fractions, in seconds; infinite where nothing fits."""
        solver = pick_solver(TIME_LIMIT_S, 0.0)
        solver.mip = False
        status = self.lp.solve(solver)
        if status == pulp.LpStatusInfeasible:
            return np.inf
        return (self.step.varValue or 0.0) / self.scale if status == pulp.LpStatusOptimal else 0.0

    def integral(self) -> float:
        """What totals in whole numbers prove in the time there is."""
        status = self.lp.solve(pick_solver(WHOLE_S, ENOUGH))
        return np.inf if status == pulp.LpStatusInfeasible else proven(self.lp, 0.0) / self.scale


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
    paths = known_paths(pieces)
    program = Bound(pieces, float((paths[0, :2].sum(axis=0) * (pieces.forward_s + pieces.backward_s).mean()).sum()))
    if leaner is not None:
        program.leaner_than(leaner)
    for path in paths:
        program.add_path(path)
    if leaner is not None:
        for rank, moments in enumerate(pieces.rounds.held):
            for held in moments[:FEW_MOMENTS]:
                program.add_moment(rank, held)
    bound_s = program.relaxed()
    if not whole or bound_s >= limit_s:
        return bound_s
    program.whole()
    return max(bound_s, program.integral()) if program.totals else bound_s


def roomy(pieces: Pieces) -> bool:
    """Whether so much is free that no plan worth a thought is short of bytes; pieces of the fastest operators."""
    return pieces.recompute in ("auto", "none") and pieces.over(
        pieces.pinned(even_stages(pieces))
    ) <= -SPARE * pieces.wall


def known_paths(pieces: Pieces) -> np.ndarray:
    """[paths, 3, v·d]: those that any schedule of its kind has."""
    if splits(pieces.schedule):
        even = pieces.path(pieces.pinned(even_stages(pieces))).counts
        return np.concatenate([pieces.rounds.paths, even[None]])
    rows = rank_paths(pieces.ranks, pieces.microbatches, pieces.virtual_stages)
    return np.stack([rows, rows, 0 * rows], axis=1)
