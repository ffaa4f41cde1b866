"""A program as a PuLP problem, for CBC."""

from __future__ import annotations

import itertools

import numpy as np
import pulp

from autoplan.solver.integer_program import TIME_LIMIT_S, Answer, Infeasible, Program


class Listed(pulp.LpProblem):
    """PuLP collects a problem's variables anew from all constraints, several times for each solve. Here they are those
    of a list, in its order."""

    made: list[pulp.LpVariable]

    def variables(self) -> list[pulp.LpVariable]:
        return self.made


class Cbc:
    """A program as a PuLP problem, solved by CBC."""

    def __init__(self, program: Program, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.program, self.time_limit_s, self.problem = program, time_limit_s, Listed("arrays", pulp.LpMinimize)
        columns, factors, starts = program.columns.tolist(), program.factors.tolist(), program.starts.tolist()
        kinds = [pulp.LpInteger if whole else pulp.LpContinuous for whole in program.whole.tolist()]
        bounds = zip(program.low.tolist(), program.high.tolist(), kinds, strict=True)
        self.problem.made = made = [
            pulp.LpVariable(f"x{n}", low, None if np.isinf(high) else high, kind)
            for n, (low, high, kind) in enumerate(bounds)
        ]
        self.rows = [
            pulp.LpAffineExpression([(made[columns[n]], factors[n]) for n in range(start, end)])
            for start, end in itertools.pairwise(starts)
        ]
        for terms, least, most in zip(self.rows, program.least.tolist(), program.most.tolist(), strict=True):
            if least == most:
                self.problem += terms == most
                continue
            if np.isfinite(least):
                self.problem += terms >= least
            if np.isfinite(most):
                self.problem += terms <= most

    def run(self, cost: np.ndarray, *, relaxed: bool, gap: float) -> Answer:
        """As ``Engine.run``."""
        prices = zip(self.problem.made, cost.tolist(), strict=True)
        self.problem.setObjective(pulp.LpAffineExpression([(v, price) for v, price in prices if price]))
        whole = self.program.whole.any() and not relaxed
        cbc = pulp.PULP_CBC_CMD(mip=not relaxed, msg=False, timeLimit=self.time_limit_s, gapRel=gap, threads=1)
        status, solved = self.problem.solve(cbc), self.problem.sol_status
        if status == pulp.LpStatusInfeasible:
            raise Infeasible("the solver calls it infeasible")
        if solved not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return Answer(None, 0.0)
        reached = float(pulp.value(self.problem.objective) or 0.0)
        optimal = status == pulp.LpStatusOptimal and solved == pulp.LpSolutionOptimal
        values = np.array([variable.varValue or 0.0 for variable in self.problem.made])
        return Answer(values, reached * (1 - gap * whole) if optimal else 0.0)  # CBC doesn't tell its bound

    def grown(self, program: Program) -> Cbc:
        """As ``Engine.grown``."""
        return Cbc(program, self.time_limit_s)

    def limit(self, most: float) -> None:
        """As ``Engine.limit``."""
        self.problem.constraints.pop("limit", None)
        if np.isfinite(most):
            self.problem += pulp.LpConstraint(self.rows[-1], pulp.LpConstraintLE, "limit", most)

    def allow(self, allowed: np.ndarray) -> None:
        """As ``Engine.allow``."""
        for variable, may in zip(self.problem.made, allowed.tolist(), strict=False):
            variable.upBound = float(may)
