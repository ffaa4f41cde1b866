"""A lower bound on every division of a chain into v·d stages, by a small linear program.

It is the program of ``interleaved_milp`` in fractions, without the order of the chain: how many segments of each run a
stage holds, and how many of these it keeps, recomputes in full or selectively. A division says that, too, so none takes
less than the least seconds of such an assignment:

    minimise T
    Σ_k d[k,r] = n_r,  Σ_r d[k,r] ≥ 1     each run and stage, with d = kept + full + selective
    T ≥ Σ counts·seconds                   each path through the schedule
    bytes ≤ memory limit                   each rank, at its fullest moments and with nothing in flight

Where a run can't lie on a stage, for the segments in front of it or behind, it doesn't. What a border costs, or a
buffer, is the least of what may lie there. That leaves a row for each stage, run, path and moment, where the whole
program has dozens for each stage. Most searches of divisions only prove that a candidate can't win, and this proves
most of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autoplan.search.inter_op.chain_costs import ChainCosts
from autoplan.search.inter_op.interleaved import FEW_MOMENTS
from autoplan.search.inter_op.interleaved_milp import PartitionMilp, SegmentRuns

Term = tuple[np.ndarray, np.ndarray]


def assignment_bound_s(costs: ChainCosts, paths: Iterable[np.ndarray], scale_s: float) -> float:
    """Seconds from the first forward to the last backward that no division undercuts; infinite where none fits.

    paths    through the schedule, as counts of actions [DURATIONS, v·d]; any bound every division
    scale_s  about as long, in which the program counts
    """
    program = AssignmentProgram(costs, scale_s, SegmentRuns.of(costs, turns=True))
    for path in paths:
        program.add_path(path)
    program.hold(FEW_MOMENTS)
    return program.lp.solve(relaxed=True).bound * scale_s


class AssignmentProgram(PartitionMilp):
    """The program without the chain's order.

    ways  [1 or 3, v·d, runs] variables: segments of a run that a stage keeps, and where recomputation is free those
          that it recomputes in full, and selectively
    """

    def borders(self) -> None:
        stages, runs = self.costs.stages, self.runs
        least, most = runs.at_borders(stages)
        self.longest, self.sure = most[1:] - least[:-1], least[1:] - most[:-1]
        again = [self.longest * (self.of["repeated"] > 0)] * 2 if self.costs.recompute == "auto" else []
        self.ways = self.lp.variables(0.0, np.stack([self.longest, *again]))
        each = np.arange(len(runs.sizes))
        self.lp.enter(self.lp.add_rows(len(each), runs.sizes, runs.sizes) + each, self.ways, 1.0)
        stage = np.arange(stages)[:, None]
        self.lp.enter(self.lp.add_rows(stages, 1.0, np.inf) + stage, self.ways, 1.0)

    def recompute(self) -> None:
        stage, run = np.nonzero((self.longest > 0) & (self.of["repeated"] > 0))
        self.cells = (stage, run)

    def moved(self, values: np.ndarray, stages: Sequence[int] | slice = slice(None)) -> Term:
        numbers = self.ways[:, stages]
        return numbers.ravel(), np.broadcast_to(values, numbers.shape).ravel()

    def recomputed(self, full: np.ndarray, part: np.ndarray) -> tuple[Term, ...]:
        """Selectively, ``b`` counts one; in full, ``a`` does, too."""
        if self.costs.recompute != "auto":
            return ()
        _, fully, partly = self.ways
        return (fully[self.cells], full + part), (partly[self.cells], part)

    def behind(self, values: np.ndarray, borders: Sequence[int] | slice) -> tuple[float, Term]:
        """Of each border the least of the runs that the stage behind it may begin with."""
        there = self.longest[np.arange(self.costs.stages + 1)[borders]] > 0
        return -float(np.where(there, values, np.inf).min(axis=1).sum()), (np.zeros(0, dtype=int), np.zeros(0))

    def message(self, mine: Sequence[int]) -> int:
        return int(self.lp.variables(0.0, np.inf))

    def rebuilt(self, mine: Sequence[int]) -> int:
        return int(self.lp.variables(0.0, np.inf))

    def most(self, name: str, ways: int) -> np.ndarray:
        """Of each stage no more than the least run that it may hold, or the largest that it surely does."""
        if (key := (name, ways)) not in self.largest:
            values = self.of[name] / self.costs.memory_limit
            if name in ("kept", "rebuilt"):
                values = values * self.of["repeated"]
            surely = np.where(self.sure > 0, values, 0.0).max(axis=1)
            least = np.where(self.longest > 0, values, np.inf).min(axis=1)
            sure = np.zeros(ways)
            np.maximum.at(sure, np.arange(self.costs.stages) % ways, np.maximum(surely, least))
            self.largest[key] = self.lp.variables(sure, np.inf)
        return self.largest[key]
