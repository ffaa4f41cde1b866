"""A program inside HiGHS."""

import highspy
import numpy as np

from autoplan.solver.integer_program import TIME_LIMIT_S, Answer, Infeasible, Program

ONE_BY_ONE = (("presolve_rule_off", 1 << 13),)
"""Options of HiGHS where a row is limited: parallel columns stay apart, of which it tells on the terminal otherwise."""
PLAIN = tuple((f"mip_heuristic_run_{name}", False) for name in ("rens", "rins", "root_reduced_cost"))
"""Options of HiGHS: no programs within programs, in which it looks for better answers. Ours are proven after a few
nodes, and hard ones took four times as long."""


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
