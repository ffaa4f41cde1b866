"""A program inside HiGHS."""

from __future__ import annotations

import highspy
import numpy as np

from autoplan.solver.integer_program import TIME_LIMIT_S, Answer, Infeasible, Program

ONE_BY_ONE = (("presolve_rule_off", 1 << 13),)
"""Options of HiGHS where a row is limited: parallel columns stay apart, of which it tells on the terminal otherwise."""
PLAIN = tuple((f"mip_heuristic_run_{name}", False) for name in ("rens", "rins", "root_reduced_cost"))
"""Options of HiGHS: no programs within programs, in which it looks for better answers. Ours are proven after a few
nodes, and hard ones took four times as long."""
DUAL, PRIMAL = 1, 4
"""The simplex method. Programs that aren't of flows take half as long by the primal one, unless they have grown."""


class Highs:
    """A program inside HiGHS."""

    def __init__(self, program: Program, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.program, self.time_limit_s, self.relaxed = program, time_limit_s, False
        self.method = PRIMAL
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
        self.inside.setOptionValue("simplex_strategy", DUAL if self.program.flows or not relaxed else self.method)
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

    def grown(self, program: Program) -> Highs:
        """As ``Engine.grown``. The last answer breaks no more than the new rows: a few steps of the dual simplex."""
        old, new = self.program, program.variables - self.program.variables
        none = np.zeros(0, dtype=np.int32)
        free = program.low[old.variables :], program.high[old.variables :]
        self.inside.addCols(new, np.zeros(new), *free, 0, np.zeros(new, dtype=np.int32), none, np.zeros(0))
        if not self.relaxed and new:
            each = np.arange(old.variables, program.variables, dtype=np.int32)
            self.inside.changeColsIntegrality(new, each, program.whole[old.variables :].astype(np.uint8))
        rows = slice(old.constraints, None)
        first = program.starts[old.constraints]
        starts, entries = program.starts[rows][:-1] - first, slice(first, None)
        self.inside.addRows(
            program.constraints - old.constraints, program.least[rows], program.most[rows],
            len(program.columns) - int(first), starts.astype(np.int32), program.columns[entries].astype(np.int32),
            program.factors[entries],
        )  # fmt: skip
        self.program, self.method = program, DUAL
        return self

    def limit(self, most: float) -> None:
        """As ``Engine.limit``."""
        self.inside.changeRowBounds(self.program.constraints - 1, -np.inf, most)

    def allow(self, allowed: np.ndarray) -> None:
        """As ``Engine.allow``."""
        each = np.arange(len(allowed), dtype=np.int32)
        self.inside.changeColsBounds(len(each), each, np.zeros(len(each)), allowed.astype(float))
