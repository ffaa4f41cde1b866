"""The operator problem under a memory wall, all that is held together in one row, in whole numbers.

Prices of bytes (``columns``) give answers on a convex hull alone. Where segments may be recomputed that is enough: how
many of them are fills what lies between two answers. Where none may be, what lies between are other operators, and
what a block makes for a moment counts as much as what it keeps:

    minimise  Σ x time + Σ y·arc
    a·Σ x·state + n·(Σ x·kept + Σ z·kept) + W ≤ room        W ≥ Σ_o x[g,o]·working[g,o]  for every operator g

with a bytes held for each byte of parameters, n microbatches in flight (``program.held_jointly``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autoplan.cost.prices import layout_bytes
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.inputs import Formulation
from autoplan.search.intra_op.milp import held_jointly, program
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.pruning import variables
from autoplan.search.intra_op.solve import SCALE, Solution, Weights, measure, options_of
from autoplan.solver.engines import Engine, Infeasible, engine

SMALL = 1_000        # variables of a problem that is solved to the end
GAP = 1e-3           # relative, of programs of others
ROUNDING = 1e-9
TIME_LIMIT_S = 30.0  # of each


@dataclass(frozen=True)
class HeldBytes:
    """Bytes on a device for each byte of parameters, and for each that is kept of one microbatch."""

    state: float
    kept: float


@dataclass
class Joint:
    """One problem, solved under one room after another.

    working  of each group, bytes that stand for a moment with each of its options
    """

    problem: Problem
    working: Sequence[np.ndarray]
    held: HeldBytes
    engine: Engine | None = None
    answers: dict[float, Solution | None] = field(default_factory=dict)

    def quickest(self, room: float) -> Solution | None:
        """The quickest assignment that holds no more than that, its bound what none of these undercuts; None where
        there is none. Raises Infeasible where the solver has none in time."""
        if room not in self.answers:
            found = self.solved(room, self.made.program.time_s)
            self.answers[room] = None if found is None else replace(found[0], bound=min(found[1], found[0].time_s))
        return self.answers[room]

    @cached_property
    def leanest(self) -> Solution:
        """The assignment that holds least, and of those that do the quickest. Raises Infeasible as the same."""
        found = self.made.program
        held = self.held.state * found.state_bytes + self.held.kept * found.kept_bytes
        held[-1] = found.units[0]
        least = self.solved(math.inf, held)
        if least is None:
            raise Infeasible("the problem has no answer, whatever it holds")
        return self.quickest(self.bytes(least[0]) * (1 + ROUNDING)) or least[0]

    def bytes(self, solution: Solution) -> float:
        """That an assignment holds."""
        working = max((float(w[o]) for w, o in zip(self.working, solution.options, strict=True) if len(w)), default=0.0)
        return self.held.state * solution.state_bytes + self.held.kept * solution.kept_bytes + working

    @property
    def made(self) -> Engine:
        if self.engine is None:
            self.engine = engine(held_jointly(program(self.problem), self.working, self.held.state, self.held.kept))
        return self.engine

    def solved(self, room: float, cost: np.ndarray) -> tuple[Solution, float] | None:
        """The cheapest assignment that holds no more than that, and what its cost is at the least."""
        start, inside, gap = time.perf_counter(), self.made, GAP if variables(self.problem) > SMALL else 0.0
        found, scale = inside.program, SCALE / max(float(cost.max()), 1e-30)
        inside.limit((-math.inf,), (room / found.units[0],))
        try:
            answer = inside.run(cost * scale, np.ones(found.options, dtype=bool), TIME_LIMIT_S, gap)
        except Infeasible:
            return None
        options = options_of(answer, found)
        if options is None:
            raise Infeasible(f"the solver found nothing in {TIME_LIMIT_S} s")
        sizes = (found.variables, found.constraints)
        return measure(self.problem, Weights(), options, 0.0, sizes, start), answer.bound / scale


def working_bytes(form: Formulation, problem: Problem) -> list[np.ndarray]:
    """Of each group, bytes of an operator's result and of its gradient: as ``account`` counts those of compiled
    blocks."""
    found = []
    for group in problem.groups:
        kind, block, name = group.key
        sizes = []
        if kind == "node":
            result = form.operators[block][name].node.type
            layouts = [o.output(len(result.shape), form.mesh) for o in group.options if isinstance(o, Strategy)]
            sizes = [2.0 * layout_bytes(result, layout, form.mesh) for layout in layouts]
        found.append(np.array(sizes))
    return found
