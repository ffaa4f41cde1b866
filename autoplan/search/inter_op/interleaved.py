"""Which layers each stage holds where ranks have several, or the backward is split: the chain cut into v·d stages.

The step time of a division (``chain_costs``) is the longest path through the actions of its schedule. The search is of
three parts:

1. Even stages, with as much recomputed as the memory limit asks for, are a first answer. Where they take far longer
   than the limit on time, no other division will make up for it, and the search is given up.
2. Cutting planes (Kelley 1960). The longest path of one division, as counts of each stage's actions, bounds the step of
   every division from below. It becomes a row of the integer program (``interleaved_milp``), whose answer is run next
   and gives another row. In fractions of segments that takes milliseconds, and its optimum bounds all divisions.
3. If the best is not within the gap of that bound: where the program has few whole numbers it is solved in these, which
   proves the optimum; where it has many, tabu search (Glover 1989) goes from division to neighbour (``tabu_search``).

A glance at a candidate is the first two parts; who searches it later goes on from there. With other operators of the
same candidate the last part alone is done, from the best division found before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoplan.cost.interleaved import CriticalPath
from autoplan.search.inter_op.chain_costs import ChainCosts, Division, Divisions, even_stages, fitted
from autoplan.search.inter_op.interleaved_milp import Found, PartitionMilp, SegmentRuns
from autoplan.search.inter_op.partition import Cuts
from autoplan.search.inter_op.rank_excess import RankExcess
from autoplan.search.inter_op.tabu_search import again_s, neighbours, recomputed_otherwise, runs_again

GAP = 0.005
NEAR = 1.12        # times the limit that even stages may take: better divisions seldom gain more
MOST_CUTS = 6      # programs solved in fractions
STALLED = 2e-4     # less than that, as a share, and a further cut is not worth its time
FEW_INTEGERS = 12  # up to which the program is solved in whole numbers
MANY_INTEGERS = 150  # beyond which kinds of layers that take turns are counted: fractions of few layers start better
WHOLE_CUTS = 10    # such programs solved
POLISHED = 12      # schedules run on what moves of recomputation lead to
STEPS = 80         # from one division to the next
PATIENCE = 10      # such steps without anything better
CLOSE = 1.03       # times the limit, beyond which the best has to come nearer as quickly as it did
AGAIN = 1.01       # times the limit up to which neighbours are searched again: that gains little
PACE = 5           # steps by which that is judged
RUN = 32           # neighbours on which the schedule is run, of each step
PATHS = 80         # the last known ones, by which neighbours are chosen
MEANS = (0.3, 0.1)  # as ``mean`` of ``DivisionSearch.tabu_search``, one after another
FEW_MOMENTS = 2    # of a rank's, those with most in flight, are in the program from the start
TIGHT = 0.7        # of the memory limit, beyond which they are


@dataclass(frozen=True)
class ChunkCuts:
    """What was found; ``cuts`` has its simulated and its least possible seconds."""

    cuts: Cuts
    division: Division


def evenly(costs: ChainCosts) -> ChunkCuts | None:
    """Stages of about the same time, where bytes are only to be counted."""
    if len(costs) < costs.stages:
        return None
    division = costs.pinned(even_stages(costs))
    step_s = costs.step_s(division)
    return ChunkCuts(Cuts(division.stages, step_s, step_s), division)


class DivisionSearch:
    """The search for one chain's best division, in parts. Each gives the best that is found, and the bound that is
    proven by then; None where none fits, all take ``limit_s`` or more, or even stages are far from it.

    gap        relative, at which the search ends
    best       the quickest division that fits, and ``best_s`` of it
    bound_s    which no division undercuts
    last       the last answer of the program
    paths      those known, as counts of actions
    ran        divisions on which the schedule was run, with its longest path
    tried      divisions that were taken, or what recomputation made of them
    few        whether the program is solved in whole numbers, once it was built
    searched   times that neighbours were
    stopped    whether the limit ended one of these early
    """

    def __init__(
        self, costs: ChainCosts, limit_s: float = np.inf, gap: float = GAP, whole_cuts: int = WHOLE_CUTS,
        few_integers: int = FEW_INTEGERS,
    ) -> None:  # fmt: skip
        self.costs, self.limit_s, self.gap = costs, limit_s, gap
        self.whole_cuts, self.few_integers = whole_cuts, few_integers
        self.best: Division | None = None
        self.best_s, self.bound_s = np.inf, 0.0
        self.last: Division | None = None
        self.paths: list[np.ndarray] = []
        self.ran: dict[Division, CriticalPath] = {}
        self.tried: set[Division] = set()
        self.few: bool | None = None
        self.searched = 0
        self.stopped = False

    @property
    def given_up(self) -> bool:
        """Whether more would have been tried with more time."""
        return self.stopped or self.bound_s >= self.limit_s

    @property
    def done(self) -> bool:
        return self.best_s <= self.bound_s * (1 + self.gap) or self.bound_s >= self.limit_s

    @cached_property
    def even(self) -> Division:
        return self.costs.pinned(even_stages(self.costs))

    def glance(self) -> ChunkCuts | None:
        """The first two parts alone; None, too, where even stages don't fit and nobody is to go on from there."""
        return None if self.hopeless(searches=False) else self.without_neighbours()

    def run(self, *, thorough: bool = True) -> ChunkCuts | None:
        """All three parts; those that were done are not done again.

        thorough  whether neighbours are searched more than once
        """
        if self.hopeless(searches=True):
            return None
        self.without_neighbours()
        if not self.few and not self.done:
            self.tabu_searches(self.best or self.last or self.even, len(MEANS) if thorough else 1)
        return self.found

    def without_neighbours(self) -> ChunkCuts | None:
        """Even stages and the program's answers."""
        if self.few is None:
            self.take(self.even)
            milp = self.program(self.even)
            self.few = not milp.runs.several.any() and milp.lp.integers <= self.few_integers
            self.relaxed(milp)
            if self.few:
                for _ in range(0 if self.done else self.whole_cuts):
                    if not self.add_cut(milp, milp.solve(self.gap / 4)) or self.done:
                        break
            elif not self.done:
                self.polish()
        return self.found

    @property
    def found(self) -> ChunkCuts | None:
        if self.best is None or self.bound_s >= self.limit_s:
            return None
        return ChunkCuts(Cuts(self.best.stages, self.best_s, min(self.bound_s, self.best_s)), self.best)

    def go_on(self, start: Division, *, searches: bool) -> ChunkCuts | None:
        """From the best division with other operators, which is good already; no bound is proven.

        searches  whether its neighbours are searched, or only what it recomputes moves
        """
        if len(self.costs) < self.costs.stages:
            return None
        if not self.searched:
            self.paths = [*self.costs.interleaved.paths, self.path(start).counts]
            self.take(start)
            if self.best_s > self.limit_s * NEAR:
                return None
            self.polish()
        if searches:
            self.tabu_searches(start, len(MEANS))
        return self.found

    def hopeless(self, *, searches: bool) -> bool:
        """Whether even stages take so much longer than the limit that no division will make up for it: by the paths
        that are known, and, if not by these, by running the schedule; or don't fit, where nobody goes on from there."""
        if len(self.costs) < self.costs.stages:
            return True
        if not np.isfinite(self.limit_s):
            return False
        if self.evenly_held is None:
            return not searches
        return self.least_even_s > self.limit_s * NEAR or self.even_s > self.limit_s * NEAR

    @cached_property
    def evenly_held(self) -> Division | None:
        """Even stages with as much recomputed as the memory limit asks for."""
        return fitted(self.costs, self.even)

    @cached_property
    def least_even_s(self) -> float:
        """Of these, by the paths that are known."""
        assert self.evenly_held is not None
        durations_s = self.costs.durations_s(self.evenly_held)
        return float(np.tensordot(self.costs.interleaved.paths, durations_s, 2).max())

    @cached_property
    def even_s(self) -> float:
        """The same, as run."""
        assert self.evenly_held is not None
        return self.path(self.evenly_held).step_s

    def program(self, even: Division) -> PartitionMilp:
        """The integer program with the paths that are known, and that of even stages."""
        p, first = self.costs, self.path(even)
        runs = SegmentRuns.of(p, turns=False)
        if runs.whole_numbers(p.stages) > max(MANY_INTEGERS, self.few_integers):  # only its fractions are asked for
            runs = SegmentRuns.of(p, turns=True)
        milp = PartitionMilp(p, first.step_s, runs)
        self.paths = [*p.interleaved.paths, first.counts]
        for path in self.paths:
            milp.add_path(path)
        if p.over(even) > (TIGHT - 1) * p.memory_limit:
            milp.hold(FEW_MOMENTS)
        return milp

    def relaxed(self, milp: PartitionMilp) -> None:
        """Cuts for as long as they raise the bound, in fractions of segments."""
        for _ in range(MOST_CUTS):
            before_s = self.bound_s
            if not self.add_cut(milp, milp.solve(relaxed=True)) or self.done:
                break
            if self.bound_s <= before_s * (1 + STALLED):
                break

    def add_cut(self, milp: PartitionMilp, found: Found) -> bool:
        """Takes the program's answer, and gives it the answer's path and the moments at which it doesn't fit; False
        where there is no more to learn."""
        self.bound_s = max(self.bound_s, found.bound_s)
        if found.division is None or self.bound_s >= self.limit_s:
            return False
        self.last = found.division
        self.paths.append(self.path(found.division).counts)
        milp.add_path(self.paths[-1])
        milp.hold_exceeded(found.division)
        self.take(found.division)
        return True

    def tabu_searches(self, start: Division, most: int) -> None:
        """One after another, each from the best so far, for as long as that comes near the limit. Those that were done
        are not done again."""
        for number in range(self.searched, most):
            if number and self.best_s > self.limit_s * AGAIN:
                break
            self.tabu_search(self.best or start, MEANS[number])
            self.searched += 1

    def tabu_search(self, start: Division, mean: float) -> None:
        """From a division to the best of its neighbours that is new, also where that is slower, for as long as
        something better comes now and then (tabu search; Glover 1989).

        mean  how much the mean of the known paths counts beside the longest: where several are as long, one has to be
              shortened after another
        """
        now, since, been = start, 0, set(Divisions.of(start).keys)
        best_s: list[float] = []  # before each step
        reached_s = self.path(start).step_s if self.costs.over(start) <= 0 else np.inf
        for step in range(STEPS):
            best_s.append(self.best_s)
            if self.done or since > PATIENCE:
                break
            if step >= PACE and self.out_of_reach(best_s[-1 - PACE]):
                self.stopped = True
                break
            paths = np.array(self.paths[-PATHS:])
            near, beyond = neighbours(self.costs, now, paths)
            fresh = np.array([key not in been for key in near.keys], dtype=bool)
            fits = np.flatnonzero(fresh & (beyond <= 0))
            if not fits.size and (self.best is not None or not fresh.any()):
                break
            if not fits.size:  # on the way to what does
                now = near.one(int(np.where(fresh, beyond, np.inf).argmin()))
                been.update(Divisions.of(now).keys)
                continue
            near = near.picked(fits)
            lengths_s = self.lengths_s(near, paths)
            beside_s = mean * lengths_s.mean(axis=1)
            chosen = np.argsort(lengths_s.max(axis=1) + beside_s, kind="stable")[:RUN]
            near = near.picked(chosen)
            runs = self.costs.runs(near)
            number = int((runs.steps_s + beside_s[chosen]).argmin())
            now = near.one(number)
            been.update(Divisions.of(now).keys)
            step_s = self.record(now, runs.path(number))
            since = 0 if step_s < reached_s * (1 - STALLED) else since + 1
            reached_s = min(reached_s, step_s)

    def out_of_reach(self, before_s: float) -> bool:
        """Whether the best is far from the limit, and twice as many steps as it was judged by won't bring it there.

        before_s  the best so many steps ago
        """
        reached_s = 3 * self.best_s - 2 * before_s if np.isfinite(self.best_s) else np.inf
        return self.best_s > self.limit_s * CLOSE and reached_s > self.limit_s

    def polish(self) -> None:
        """What the best division recomputes goes to other stages of the same ranks: along the known paths, then as run.
        Begun from two ends, since of stages that hold as much either may be on the way of fewer others."""
        if self.best is None or self.costs.recompute != "auto" or not any(self.best.full):
            return
        ranks = self.costs.before_recomputation(Divisions.of(self.best))  # stages stay as they are
        for start in (self.best, fitted(self.costs, self.costs.pinned(self.best.stages), late=True)):
            now = start
            for _ in range(POLISHED):
                if now is None or self.done:
                    break
                self.record(now, self.path(now))
                now = self.recomputed_elsewhere(now, ranks)

    def path(self, division: Division) -> CriticalPath:
        """The longest path of the schedule on a division, which is run on each once."""
        if division not in self.ran:
            self.ran[division] = self.costs.path(division)
        return self.ran[division]

    def record(self, held: Division, path: CriticalPath) -> float:
        """The schedule's seconds on a division that fits; its path is known from then on."""
        self.ran[held] = path
        self.tried.add(held)
        self.paths.append(path.counts)
        if path.step_s < self.best_s:
            self.best, self.best_s = held, path.step_s
        return path.step_s

    def recomputed_elsewhere(self, division: Division, ranks: RankExcess) -> Division | None:
        """From neighbour to neighbour by another recomputation, each the one whose longest path is shortest, of those
        that fit, for as long as that gets shorter; None where it doesn't, or stays as long as the best takes.

        ranks  what they need, whatever they recompute
        """
        paths = np.array(self.paths)
        runs, each_s = runs_again(self.costs, paths), again_s(self.costs, paths)
        now = here = Divisions.of(division)
        lengths_s = self.lengths_s(here, paths)[0]
        while True:
            near = recomputed_otherwise(self.costs, now, lengths_s, each_s)
            more_s = self.costs.again_s(near) - self.costs.again_s(now)
            all_s = np.where(ranks.most(near.full.T, near.part.T)[:, None] <= 0, lengths_s + more_s @ runs.T, np.inf)
            chosen = int(all_s.max(axis=1).argmin()) if len(near) else -1
            if chosen < 0 or all_s[chosen].max() >= lengths_s.max() * (1 - 1e-9):
                return None if now is here or lengths_s.max() >= self.best_s else now.one(0)
            now, lengths_s = near.picked(np.array([chosen])), all_s[chosen]

    def lengths_s(self, many: Divisions, paths: np.ndarray) -> np.ndarray:
        """[many, paths]: seconds of each path."""
        return np.tensordot(self.costs.all_durations_s(many), paths, ((1, 2), (1, 2)))

    def take(self, division: Division) -> None:
        """Keeps a division where it fits, or what recomputation makes of it, and is the best so far."""
        if division in self.tried:
            return
        self.tried.add(division)
        held = self.evenly_held if division == self.even else fitted(self.costs, division)
        if held is not None:
            step_s = self.path(held).step_s
            if step_s < self.best_s:
                self.best, self.best_s = held, step_s
