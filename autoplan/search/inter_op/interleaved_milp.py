"""The ILP over the cuts of a chain into v·d stages, d ranks with v of them each.

Segments next to each other whose numbers agree form a run. With q[k,r] segments of run r before stage k, of n_r in all,
and d[k,r] = q[k+1,r] - q[k,r] of them on it, of which a[k,r] are recomputed in full and b[k,r] - a[k,r] selectively:

    minimise T                                                                                  Master.__init__
    T  ≥  Σ counts·seconds(d, a, b)             for each path through the schedule              Master.add_path
    Σ_r q[k+1,r] ≥ Σ_r q[k,r] + 1               no stage is empty                               Master.cut
    c[k,r] = 1 where q[k,r] = n_r;  q[k,r+1] ≤ n_{r+1}·c[k,r]      runs fill one after another  Master.cut
    0 ≤ a ≤ b ≤ d, both filled from the front                                                   Master.recompute
    Σ_{k on ρ} h_k·kept + states + buffers + transients ≤ wall     each rank ρ, each moment h   Master.add_moment

The step's time is the longest path through the actions, so with every path T is exact; with some it is a lower bound,
and so is the dual bound of the solver. What a border costs, or a buffer on it, depends on the run behind it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import numpy as np
import pulp

from autoplan.cost.interleaved import splits
from autoplan.search.inter_op.chain_costs import FULL, PART, Division, Pieces
from autoplan.solver.engines import pick_solver
from autoplan.solver.pulp_problem import Registered

TIME_LIMIT_S = 30.0  # what is solved takes far less: a backstop
Terms = dict[pulp.LpVariable, float]
COLUMNS = tuple(f.name for f in fields(Pieces) if f.type == "np.ndarray" and f.name != "messages_s")


class Sum:
    """A linear expression under construction."""

    def __init__(self, constant: float = 0.0) -> None:
        self.terms: Terms = {}
        self.constant = constant

    def add(self, value: pulp.LpVariable | float, factor: float = 1.0) -> Sum:
        if isinstance(value, pulp.LpVariable):
            self.terms[value] = self.terms.get(value, 0.0) + factor
        else:
            self.constant += value * factor
        return self

    def expression(self) -> pulp.LpAffineExpression:
        return pulp.LpAffineExpression([(v, f) for v, f in self.terms.items() if f], self.constant)


class Cells:
    """A table of variables and of numbers that are known, of which whole weighted sums are taken at once."""

    def __init__(self, rows: list[list[pulp.LpVariable | float]]) -> None:
        cells = [cell for row in rows for cell in row]
        self.places = [i for i, cell in enumerate(cells) if isinstance(cell, pulp.LpVariable)]
        self.variables = [cells[i] for i in self.places]
        self.known = np.array([0.0 if isinstance(cell, pulp.LpVariable) else cell for cell in cells])

    def add(self, total: Sum, factors: np.ndarray) -> Sum:
        """Adds Σ factors·cells; factors are in the table's order."""
        flat, terms = factors.ravel(), total.terms
        for variable, factor in zip(self.variables, flat[self.places].tolist(), strict=True):
            if factor:
                terms[variable] = terms.get(variable, 0.0) + factor
        total.constant += float(flat @ self.known)
        return total


def run_starts(pieces: Pieces) -> list[int]:
    """The first segment of each run, and last the number of segments."""
    table = np.stack([getattr(pieces, name).astype(float) for name in COLUMNS] + list(pieces.messages_s))
    table[[COLUMNS.index(name) for name in ("received", "sent", "leaving")], 0] = -1.0
    differs = np.flatnonzero((table[:, 1:] != table[:, :-1]).any(axis=0)) + 1
    return [0, *differs.tolist(), len(pieces)]


@dataclass(frozen=True)
class Found:
    """bound_s is proven for all cuts; division is None where the solver has none, and bound_s infinite where none
    is."""

    bound_s: float
    division: Division | None


class Master:
    """The ILP, which grows by paths and moments."""

    def __init__(self, pieces: Pieces, scale_s: float) -> None:
        self.pieces, self.scale = pieces, 1.0 / scale_s
        self.starts = run_starts(pieces)
        self.sizes = [b - a for a, b in itertools.pairwise(self.starts)]
        self.runs = range(len(self.sizes))
        self.columns = {name: getattr(pieces, name)[self.starts[:-1]].astype(float) for name in COLUMNS}
        self.integers = 0
        self.lp = Registered("chunks")
        self.step = self.lp.make()
        self.lp += self.step
        self.q: list[list[pulp.LpVariable | float]] = [[0.0] * len(self.sizes)]
        self.full_at: list[list[pulp.LpVariable | float]] = [[0.0] * len(self.sizes)]
        for stage in range(1, pieces.stages):
            self.cut(stage)
        self.q.append([float(n) for n in self.sizes])
        self.full_at.append([1.0] * len(self.sizes))
        self.cells, self.complete = Cells(self.q[1:-1]), Cells(self.full_at[1:-1])
        for stage in range(pieces.stages):
            self.at_least(self.moved(Sum(-1.0), stage, np.ones(len(self.sizes))))
        self.a: dict[tuple[int, int], pulp.LpVariable] = {}
        self.b: dict[tuple[int, int], pulp.LpVariable] = {}
        if pieces.recompute == "auto":
            for stage in range(pieces.stages):
                self.recompute(stage)
        self.there: dict[tuple[int, int], pulp.LpVariable | float] = {}
        self.largest: dict[tuple[str, int], pulp.LpVariable | float] = {}

    def of(self, name: str) -> np.ndarray:
        """A column of the pieces, one number for each run."""
        return self.columns[name]

    def variable(self, high: float, least: float = 0) -> pulp.LpVariable:
        self.integers += 1
        return self.lp.make(least, high, pulp.LpInteger)

    def at_least(self, total: Sum) -> None:
        """total ≥ 0; where every cut has the same total and it is less, as of ranks too full whatever they hold, no
        cuts are."""
        if total.terms:
            self.lp += total.expression() >= 0
        elif total.constant < -1e-9:
            self.lp += self.step <= -1.0

    def cut(self, stage: int) -> None:
        """The border in front of a stage: q, and whether each run is complete before it."""
        low, high = stage, len(self.pieces) - (self.pieces.stages - stage)
        least = [min(max(low - start, 0), n) for start, n in zip(self.starts, self.sizes, strict=False)]
        most = [min(max(high - start, 0), n) for start, n in zip(self.starts, self.sizes, strict=False)]
        row: list[pulp.LpVariable | float] = []
        done: list[pulp.LpVariable | float] = []
        for r, (a, b) in enumerate(zip(least, most, strict=True)):
            made: pulp.LpVariable | float = float(a)
            if a != b:
                made = self.variable(b, least=a)
            n = self.sizes[r]
            complete: pulp.LpVariable | float = float(a == n)
            if a < n == b:
                complete = made if n == 1 else self.variable(1)
                if n > 1:
                    self.at_least(Sum().add(made).add(complete, -n))
                    self.at_least(Sum(n - 1).add(complete).add(made, -1))
            if r and b:
                self.at_least(Sum().add(done[-1], n).add(made, -1))
            row.append(made)
            done.append(complete)
        self.q.append(row)
        self.full_at.append(done)

    def moved(self, total: Sum, stage: int, values: np.ndarray) -> Sum:
        """Adds Σ_r values[r]·d[stage,r]."""
        for r in self.runs:
            if values[r]:
                total.add(self.q[stage + 1][r], values[r]).add(self.q[stage][r], -values[r])
        return total

    def moved_by(self, total: Sum, values: np.ndarray) -> Sum:
        """Adds Σ_{k,r} values[k,r]·d[k,r], each border once."""
        self.cells.add(total, values[:-1] - values[1:])
        return total.add(float(values[-1] @ np.array(self.sizes)))

    def borders(self, total: Sum, values: np.ndarray) -> Sum:
        """Adds over all borders the value of the run that begins or goes on behind it; values: [v·d - 1, runs]."""
        later = np.concatenate([values[:, 1:], np.zeros((len(values), 1))], axis=1)
        self.complete.add(total, later - values)
        return total.add(float(values[:, 0].sum()))

    def border(self, total: Sum, stage: int, values: np.ndarray) -> Sum:
        """Adds the value of the run that begins or goes on behind the border in front of a stage."""
        first = float(values[0])
        if all(value == first for value in values.tolist()):
            return total.add(first)
        before: pulp.LpVariable | float = 1.0
        for r in self.runs:
            total.add(before, values[r]).add(self.full_at[stage][r], -values[r])
            before = self.full_at[stage][r]
        return total

    def recompute(self, stage: int) -> None:
        """a and b of a stage, each filled from the front."""
        repeated = [r for r in self.runs if self.of("repeated")[r] and self.longest(stage, r)]
        for counts in (self.a, self.b):
            before = None
            for r in repeated:
                counts[stage, r] = made = self.variable(self.longest(stage, r))
                left = Sum().add(self.q[stage + 1][r]).add(self.q[stage][r], -1).add(made, -1)
                self.at_least(left)
                if before is not None:
                    self.at_least(Sum().add(before, self.longest(stage, r)).add(made, -1))
                if r != repeated[-1]:
                    through = self.variable(1)
                    bound = Sum(self.longest(stage, r)).add(through, -self.longest(stage, r))
                    self.at_least(bound.add(self.q[stage + 1][r], -1).add(self.q[stage][r]).add(made))
                    if before is not None:
                        self.at_least(Sum().add(before).add(through, -1))
                    before = through
        for r in repeated:
            self.at_least(Sum().add(self.b[stage, r]).add(self.a[stage, r], -1))

    def longest(self, stage: int, r: int) -> float:
        """The most segments of a run that a stage can hold."""
        low, high = self.q[stage][r], self.q[stage + 1][r]
        return (high.upBound if isinstance(high, pulp.LpVariable) else high) - (
            low.lowBound if isinstance(low, pulp.LpVariable) else low
        )

    def add_path(self, counts: np.ndarray) -> None:
        """T ≥ the seconds of a path that runs each stage's actions so often: counts [3, v·d]."""
        p, total = self.pieces, Sum().add(self.step)
        messages = p.messages_s[:, self.starts[:-1]]
        scaled = counts * self.scale
        self.moved_by(total, -self.seconds(scaled))
        for (k, r), made in self.a.items():
            again = -scaled[2 if k == 0 and splits(p.schedule) else 1, k]
            full, part = self.of("full_s")[r], self.of("part_s")[r]
            total.add(made, again * (full - part)).add(self.b[k, r], again * part)
        self.borders(total, -(scaled[0, 1:] + scaled[1, :-1])[:, None] * messages[1:])
        self.at_least(total)

    def seconds(self, counts: np.ndarray) -> np.ndarray:
        """[v·d, runs]: of a segment of each run on each stage, its actions as often as counted."""
        forward, backward, weights = self.of("forward_s"), self.of("backward_s"), self.of("weights_s")
        f, b, w = (row[:, None] for row in counts)
        if not splits(self.pieces.schedule):
            return f * forward + b * (backward + self.pinned_s())
        found = f * forward + b * (backward + self.pinned_s() - weights) + w * weights
        found[0] = f[0] * forward + w[0] * (self.of("whole_s") + self.pinned_s())
        return found

    def pinned_s(self) -> np.ndarray:
        """Seconds of what is recomputed in any case."""
        chosen = {FULL: "full_s", PART: "part_s"}.get(self.pieces.recompute)
        return self.of(chosen) * self.of("repeated") if chosen else 0.0 * self.of("repeated")

    def add_moment(self, rank: int, held: np.ndarray) -> None:
        """A rank's bytes at a moment are within the wall."""
        p, unit = self.pieces, 1.0 / self.pieces.wall
        kept, inputs, part, repeated = (self.of(name) for name in ("kept", "inputs", "selective", "repeated"))
        least = {FULL: inputs, PART: part}.get(p.recompute, kept)
        kept_now, total = np.where(repeated > 0, least, kept), Sum(1.0)
        for place, k in enumerate(range(rank, p.stages, p.ranks)):
            count = float(held[place])
            self.moved(total, k, -(self.of("states") + count * kept_now) * unit)
            for r in self.runs:
                if (k, r) in self.a:
                    total.add(self.a[k, r], count * (part[r] - inputs[r]) * unit)
                    total.add(self.b[k, r], count * (kept[r] - part[r]) * unit)
            total.add(self.most("constants", [k], self.of("constants")), -count * unit * self.bytes_unit())
            self.buffers(total, k, self.of("sent") + count * self.of("leaving"))
        for value in self.transients(rank):
            total.add(value, -unit * self.bytes_unit())
        self.at_least(total)

    def add_emptied(self, rank: int) -> None:
        """A rank's bytes with nothing in flight are within the wall."""
        p, unit = self.pieces, 1.0 / self.pieces.wall
        mine = list(range(rank, p.stages, p.ranks))
        for summed, largest in ((self.of("updating"), "alone"), (0.0, "reduced")):
            total = Sum(1.0)
            for k in mine:
                self.moved(total, k, -(self.of("states") + summed) * unit)
                self.buffers(total, k, self.of("sent"))
            self.at_least(total.add(self.most(largest, mine, self.of(largest)), -unit * self.bytes_unit()))

    def buffers(self, total: Sum, stage: int, leaving: np.ndarray) -> None:
        """Takes off what a stage receives into, and what it holds for the next one."""
        if stage:
            self.border(total, stage, -self.of("received") / self.pieces.wall)
        if stage < self.pieces.stages - 1:
            self.border(total, stage + 1, -leaving / self.pieces.wall)

    def bytes_unit(self) -> float:
        """Largest counts are in thousandths of the wall."""
        return self.pieces.wall / 1e3

    def transients(self, rank: int) -> list[pulp.LpVariable | float]:
        mine = list(range(rank, self.pieces.stages, self.pieces.ranks))
        found = [self.most(name, mine, self.of(name)) for name in ("working", "gathered")]
        again = {FULL: self.of("kept"), PART: self.of("rebuilt")}.get(self.pieces.recompute)
        if again is not None:
            found.append(self.most("again", mine, again * self.of("repeated")))
        elif self.pieces.recompute == "auto":
            found.append(self.rebuilt(rank, mine))
        return found

    def rebuilt(self, rank: int, mine: list[int]) -> pulp.LpVariable:
        """The largest segment of a rank that runs again: at least kept[r] where one does in full, rebuilt[r] where one
        does selectively."""
        key = ("rebuilt", rank)
        if key not in self.largest:
            self.largest[key] = made = self.lp.make()
            for r in self.runs:
                cells = [k for k in mine if (k, r) in self.a]
                if not cells:
                    continue
                for values, upper, lower in (("kept", self.a, None), ("rebuilt", self.b, self.a)):
                    some, room = self.variable(1), sum(self.longest(k, r) for k in cells)
                    uses = Sum().add(some, room)
                    for k in cells:
                        uses.add(upper[k, r], -1.0)
                        if lower is not None:
                            uses.add(lower[k, r])
                    self.at_least(uses)
                    self.at_least(Sum().add(made).add(some, -self.of(values)[r] / self.bytes_unit()))
        return self.largest[key]

    def most(self, name: str, stages: list[int], values: np.ndarray) -> pulp.LpVariable | float:
        """The largest value of the runs that some of the stages hold, in ``bytes_unit``."""
        key, scaled = (name, stages[0]), values / self.bytes_unit()
        if key in self.largest:
            return self.largest[key]
        cells = [(k, r) for k in stages for r in self.runs if self.longest(k, r) > 0]
        sure = max([float(scaled[r]) for k, r in cells if isinstance(self.is_there(k, r), float)], default=0.0)
        larger = [(k, r) for k, r in cells if scaled[r] > sure]
        if not larger:
            return self.largest.setdefault(key, sure)
        made = self.lp.make(sure)
        for k, r in larger:
            self.at_least(Sum().add(made).add(self.is_there(k, r), -scaled[r]))
        return self.largest.setdefault(key, made)

    def is_there(self, stage: int, r: int) -> pulp.LpVariable | float:
        """1 where a stage holds a segment of a run."""
        if (stage, r) not in self.there:
            low, high = self.q[stage][r], self.q[stage + 1][r]
            least = (high.lowBound if isinstance(high, pulp.LpVariable) else high) - (
                low.upBound if isinstance(low, pulp.LpVariable) else low
            )
            if least >= 1 or self.pieces.stages == 1:
                self.there[stage, r] = 1.0
            else:
                some = self.variable(1)
                self.at_least(Sum().add(some, self.longest(stage, r)).add(high, -1).add(low))
                self.there[stage, r] = some
        return self.there[stage, r]

    def relax(self) -> Found:
        """The best cuts in fractions of segments, and the nearest whole ones."""
        solver = pick_solver(TIME_LIMIT_S, 0.0)
        solver.mip = False
        status = self.lp.solve(solver)
        if status != pulp.LpStatusOptimal:
            return Found(np.inf if status == pulp.LpStatusInfeasible else 0.0, None)
        return Found((self.step.varValue or 0.0) / self.scale, self.division())

    def solve(self, gap: float) -> Found:
        """The best cuts for the paths and moments there are."""
        status = self.lp.solve(pick_solver(TIME_LIMIT_S, gap))
        if status == pulp.LpStatusInfeasible:
            return Found(np.inf, None)
        reached = self.step.varValue
        if reached is None or status != pulp.LpStatusOptimal:
            return Found(proven(self.lp, 0.0) / self.scale, None)
        bound = min(proven(self.lp, reached * (1 - gap) if self.lp.isMIP() else reached), reached)
        return Found(bound / self.scale, self.division())

    def division(self) -> Division:
        """The solution as whole numbers."""
        ends, last = [round(sum(value(q) for q in row)) for row in self.q], len(self.pieces)
        for stage in range(1, self.pieces.stages):  # what was a fraction may have left a stage empty
            ends[stage] = min(max(ends[stage], ends[stage - 1] + 1), last - (self.pieces.stages - stage))
        stages = tuple(itertools.pairwise(ends))
        pinned = self.pieces.pinned(stages)
        if self.pieces.recompute != "auto":
            return pinned
        full = [round(sum(value(self.a[k, r]) for r in self.runs if (k, r) in self.a)) for k in range(len(stages))]
        both = [round(sum(value(self.b[k, r]) for r in self.runs if (k, r) in self.b)) for k in range(len(stages))]
        counts = [int(self.pieces.repeated[slice(*at)].sum()) for at in stages]
        full = [min(a, n) for a, n in zip(full, counts, strict=True)]
        part = tuple(max(0, min(b, n) - a) for a, b, n in zip(full, both, counts, strict=True))
        return Division(stages, tuple(full), part)

    @property
    def size(self) -> tuple[int, int]:
        return len(self.lp.variables()), len(self.lp.constraints)


def value(of: pulp.LpVariable | float) -> float:
    return (of.varValue or 0.0) if isinstance(of, pulp.LpVariable) else of


def proven(lp: pulp.LpProblem, otherwise: float) -> float:
    """The solver's dual bound where it tells it (HiGHS), which it does of integers alone."""
    info = getattr(getattr(lp, "solverModel", None), "getInfo", None)
    if info is None or not lp.isMIP():
        return otherwise
    bound = float(info().mip_dual_bound)
    return bound if np.isfinite(bound) else otherwise
