"""Who solves a program in arrays: HiGHS, handed the arrays, or CBC by a PuLP problem.

A program stays with its engine, and only what it costs changes from run to run: HiGHS then begins where it ended.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np
import pulp

from autoplan.solver.integer_program import INSTALLED, Answer, Infeasible, Program, solver_name

if INSTALLED:
    import highspy

__all__ = ["Answer", "Cbc", "Engine", "Highs", "Infeasible", "engine", "solver_name"]

TIME_LIMIT_S = 300.0
"""Of one run, and of what takes far less: a backstop. HiGHS counts by the clock: where ten jobs share a processor, a
program of 4 s takes 35, and a plan mustn't depend on it."""
ONE_BY_ONE = (("presolve_rule_off", 1 << 13),)
"""Options of HiGHS where a row is limited: parallel columns stay apart, of which it tells on the terminal otherwise."""
PLAIN = tuple((f"mip_heuristic_run_{name}", False) for name in ("rens", "rins", "root_reduced_cost"))
"""Options of HiGHS: no programs within programs, in which it looks for better answers. Ours are proven after a few
nodes, and hard ones took four times as long."""


class Engine(Protocol):
    """A solver that holds one program and runs it with different costs."""

    program: Program

    def run(self, cost: np.ndarray, *, relaxed: bool, gap: float) -> Answer:
        """The least cost·v, of costs none of which is negative. Raises Infeasible.

        relaxed  whole numbers may be any
        gap      relative, at which a search for whole numbers ends
        """
        ...

    def limit(self, most: float) -> None:
        """What the last row comes to at most."""
        ...


def engine(program: Program, time_limit_s: float = TIME_LIMIT_S) -> Engine:
    """time_limit_s: of each run."""
    return (Highs if solver_name() == "HiGHS" else Cbc)(program, time_limit_s)


class Highs:
    """A program inside HiGHS."""

    def __init__(self, program: Program, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.program, self.time_limit_s, self.relaxed = program, time_limit_s, False
        self.inside = highspy.Highs()
        own = (*PLAIN, *(ONE_BY_ONE if program.limited else ()))
        for option, value in (("output_flag", False), ("threads", 1), *own):
            self.inside.setOptionValue(option, value)
        self.inside.passModel(
            program.variables, program.constraints, len(program.columns), highspy.MatrixFormat.kRowwise.value,
            highspy.ObjSense.kMinimize.value, 0.0, np.zeros(program.variables), program.low, program.high,
            program.least, program.most, program.starts.astype(np.int32), program.columns.astype(np.int32),
            program.factors, program.whole.astype(np.int32),
        )  # fmt: skip

    def run(self, cost: np.ndarray, *, relaxed: bool, gap: float) -> Answer:
        """As ``Engine.run``."""
        each = np.arange(len(cost), dtype=np.int32)
        self.inside.changeColsCost(len(cost), each, cost)
        if relaxed != self.relaxed:
            kinds = self.program.whole & (not relaxed)
            self.inside.changeColsIntegrality(len(cost), each, kinds.astype(np.uint8))
            self.relaxed = relaxed
        self.inside.setOptionValue("presolve", "off" if relaxed and self.program.flows else "choose")
        self.inside.setOptionValue("mip_rel_gap", gap)
        self.inside.setOptionValue("time_limit", self.inside.getRunTime() + self.time_limit_s)  # it counts all runs
        self.inside.run()
        status, info = self.inside.getModelStatus(), self.inside.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            raise Infeasible("the solver calls it infeasible")
        known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.array(self.inside.getSolution().col_value) if known else None
        if self.program.whole.any() and not relaxed:
            return Answer(values, max(info.mip_dual_bound, 0.0))
        return Answer(values, info.objective_function_value if status == highspy.HighsModelStatus.kOptimal else 0.0)

    def limit(self, most: float) -> None:
        """As ``Engine.limit``."""
        self.inside.changeRowBounds(self.program.constraints - 1, -np.inf, most)


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

    def limit(self, most: float) -> None:
        """As ``Engine.limit``."""
        self.problem.constraints.pop("limit", None)
        if np.isfinite(most):
            self.problem += pulp.LpConstraint(self.rows[-1], pulp.LpConstraintLE, "limit", most)
