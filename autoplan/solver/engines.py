"""Who solves a linear program: HiGHS where it is installed, handed arrays, else the CBC that PuLP brings, by a model.

A program stays with its engine, and only what it costs changes from run to run: HiGHS then begins where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pulp

from autoplan.solver.program import Program, rows_of

try:
    import highspy
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True


ONE_BY_ONE = (("presolve_rule_off", 1 << 13),)
"""For programs with one row of bytes: parallel columns stay apart, of which it tells on the terminal otherwise."""


class Infeasible(Exception):
    """No assignment satisfies the problem."""


@dataclass(frozen=True)
class Answer:
    """values  of the variables, None where nothing was found in time
    bound   what no values undercut: 0 where even the relaxation wasn't solved in time, since no cost is negative
    """

    values: np.ndarray | None
    bound: float


class Engine(Protocol):
    """One program inside a solver."""

    program: Program

    def run(self, cost: np.ndarray, integers: np.ndarray, time_limit_s: float, gap: float) -> Answer:
        """The least cost·v. integers: [options] whether each is 0 or 1, or anything between. Raises Infeasible."""
        ...

    def limit(self, least: Sequence[float], most: Sequence[float]) -> None:
        """What the last rows come to, of a program that has a row of bytes: ``held_jointly``."""
        ...


def engine(program: Program) -> Engine:
    return Highs(program) if INSTALLED else Cbc(program)


def solver_name() -> str:
    return "HiGHS" if INSTALLED else "CBC"


def pick_solver(time_limit_s: float, gap: float) -> pulp.LpSolver:
    """The same of programs that are written in PuLP."""
    if INSTALLED:
        return pulp.HiGHS(msg=False, timeLimit=time_limit_s, gapRel=gap, threads=1)
    return pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit_s, gapRel=gap, threads=1)


class Highs:
    """A program inside HiGHS. Relaxations are flows, in which presolving finds little to take away: they go to the
    simplex method as they are."""

    def __init__(self, program: Program) -> None:
        self.program, self.integers = program, np.zeros(program.options, dtype=bool)
        self.inside = highspy.Highs()
        own = ONE_BY_ONE if program.units else ()
        for option, value in (("output_flag", False), ("threads", 1), *own):
            self.inside.setOptionValue(option, value)
        upper = np.full(program.variables, np.inf)
        upper[: program.options] = 1.0
        self.inside.passModel(
            program.variables, program.constraints, len(program.columns), highspy.MatrixFormat.kRowwise.value,
            highspy.ObjSense.kMinimize.value, 0.0, np.zeros(program.variables), np.zeros(program.variables), upper,
            program.least, program.most, program.starts.astype(np.int32), program.columns.astype(np.int32),
            program.factors, np.zeros(program.variables, dtype=np.int32),
        )  # fmt: skip

    def run(self, cost: np.ndarray, integers: np.ndarray, time_limit_s: float, gap: float) -> Answer:
        """As ``Engine.run``."""
        self.inside.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)
        whole = bool(integers.any())
        if (integers != self.integers).any():
            options = np.arange(self.program.options, dtype=np.int32)
            kinds = (highspy.HighsVarType.kContinuous.value, highspy.HighsVarType.kInteger.value)
            self.inside.changeColsIntegrality(len(options), options, np.where(integers, *kinds[::-1]).astype(np.uint8))
            self.integers = integers
        self.inside.setOptionValue("presolve", "choose" if whole else "off")
        self.inside.setOptionValue("mip_rel_gap", gap)
        self.inside.setOptionValue("time_limit", self.inside.getRunTime() + time_limit_s)  # it counts all runs
        self.inside.run()
        status, info = self.inside.getModelStatus(), self.inside.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            raise Infeasible("the solver calls it infeasible")
        optimal = status == highspy.HighsModelStatus.kOptimal
        known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.array(self.inside.getSolution().col_value) if known else None
        if whole:
            return Answer(values, max(info.mip_dual_bound, 0.0))
        return Answer(values, info.objective_function_value if optimal else 0.0)

    def limit(self, least: Sequence[float], most: Sequence[float]) -> None:
        """As ``Engine.limit``."""
        for row, ends in enumerate(zip(least, most, strict=True), start=self.program.constraints - len(least)):
            self.inside.changeRowBounds(row, *ends)


class Cbc:
    """A program as a PuLP model, solved by CBC."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.model = pulp.LpProblem("operators", pulp.LpMinimize)
        uppers = [1.0] * program.options + [None] * (program.variables - program.options)
        self.variables = [pulp.LpVariable(f"v{i}", 0, upper) for i, upper in enumerate(uppers)]
        for entries, least, most in rows_of(program):
            terms = pulp.LpAffineExpression([(self.variables[column], factor) for column, factor in entries])
            if np.isfinite(most):
                self.model += terms == most if least == most else terms <= most

    def run(self, cost: np.ndarray, integers: np.ndarray, time_limit_s: float, gap: float) -> Answer:
        """As ``Engine.run``."""
        prices = zip(self.variables, cost.tolist(), strict=True)
        self.model.setObjective(pulp.LpAffineExpression([(v, price) for v, price in prices if price]))
        for variable, whole in zip(self.variables, integers.tolist(), strict=False):
            variable.cat = pulp.LpInteger if whole else pulp.LpContinuous
        status = self.model.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit_s, gapRel=gap, threads=1))
        if status == pulp.LpStatusInfeasible:
            raise Infeasible("the solver calls it infeasible")
        if self.model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return Answer(None, 0.0)
        values = np.array([variable.varValue or 0.0 for variable in self.variables])
        if status != pulp.LpStatusOptimal or self.model.sol_status != pulp.LpSolutionOptimal:
            return Answer(values, 0.0)
        return Answer(values, float(cost @ values) * (1 - gap if integers.any() else 1.0))

    def limit(self, least: Sequence[float], most: Sequence[float]) -> None:
        """As ``Engine.limit``."""
        for number, (entries, _, _) in enumerate([*rows_of(self.program)][-len(least) :]):
            terms = pulp.LpAffineExpression([(self.variables[column], factor) for column, factor in entries])
            for name, value, sense in (("least", least[number], 1), ("most", most[number], -1)):
                self.model.constraints.pop(f"{name}{number}", None)
                if np.isfinite(value):
                    self.model += pulp.LpConstraint(terms, sense, f"{name}{number}", value)
