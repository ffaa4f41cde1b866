"""A program that is written, and read, as PuLP's expressions."""

from __future__ import annotations

import numpy as np
import pulp

from autoplan.solver.program import Answer, Infeasible, solver_name


class PulpProblem(pulp.LpProblem):
    """A minimisation, solved by HiGHS where it is installed, else by CBC.

    PuLP collects a problem's variables anew from all constraints, several times for each solve. Here they are those
    that ``make`` made, in that order.
    """

    def __init__(self, name: str, *, cbc: bool = False) -> None:
        super().__init__(name, pulp.LpMinimize)
        self.made: list[pulp.LpVariable] = []
        self.cbc = cbc

    def make(
        self, low: float | None = 0, high: float | None = None, category: str = pulp.LpContinuous
    ) -> pulp.LpVariable:
        variable = pulp.LpVariable(f"x{len(self.made)}", low, high, category)
        self.made.append(variable)
        return variable

    def variables(self) -> list[pulp.LpVariable]:
        return self.made

    def run(self, time_limit_s: float, gap: float, *, integers: bool = True) -> Answer:
        """The least objective; the variables have their values from it. Raises Infeasible.

        integers  False: the linear relaxation
        """
        solver = pulp.PULP_CBC_CMD if self.cbc or solver_name() == "CBC" else pulp.HiGHS
        status = self.solve(solver(mip=integers, msg=False, timeLimit=time_limit_s, gapRel=gap, threads=1))
        if status == pulp.LpStatusInfeasible:
            raise Infeasible("the solver calls it infeasible")
        whole = integers and bool(self.isMIP())
        bound = self.dual_bound() if whole else None
        if self.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return Answer(None, bound or 0.0)
        reached = float(pulp.value(self.objective) or 0.0)
        if bound is None:
            optimal = status == pulp.LpStatusOptimal and self.sol_status == pulp.LpSolutionOptimal
            bound = reached * (1 - gap if whole else 1.0) if optimal else 0.0
        return Answer(np.array([variable.varValue or 0.0 for variable in self.made]), min(bound, reached))

    def dual_bound(self) -> float | None:
        """What HiGHS has proven; None of CBC, which doesn't tell."""
        info = getattr(getattr(self, "solverModel", None), "getInfo", None)
        bound = float(info().mip_dual_bound) if info is not None else np.inf
        return bound if np.isfinite(bound) else None
