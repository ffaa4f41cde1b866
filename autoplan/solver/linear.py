"""A linear program in arrays, and the least value that it proves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pulp
from scipy.sparse import csr_matrix

from autoplan.solver.engines import INSTALLED, PROVING

if INSTALLED:
    import highspy

TIME_LIMIT_S = 30.0  # of what takes far less: a backstop


@dataclass(frozen=True)
class Solved:
    """bound: what no values undercut; values: those found, None where there are none."""

    bound: float
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Linear:
    """minimise v[0] with rows·v ≥ least, low ≤ v ≤ high.

    integers  whether each variable is a whole number, where these are asked for
    large     solved by an interior point method, which takes a fraction of the simplex method's time for thousands of
              rows, and none where others are known
    """

    rows: np.ndarray | csr_matrix
    least: np.ndarray
    low: np.ndarray
    high: np.ndarray
    integers: np.ndarray
    large: bool = False

    def bound(self, *, whole: bool = False, nodes: int = 0, gap: float = 0.0, enough: float = np.inf) -> float:
        """What no values undercut; infinite where there are none.

        whole   as well as so many nodes of the search for whole numbers prove it, which are the same on a slow machine
        enough  beyond which it doesn't matter how much it is
        """
        return self.solved(whole=whole, nodes=nodes, gap=gap, enough=enough).bound

    def solved(self, *, whole: bool = False, nodes: int = 0, gap: float = 0.0, enough: float = np.inf) -> Solved:
        """The same, and the values that were found."""
        return self.by_highs(whole, nodes, gap, enough) if INSTALLED else self.by_cbc(whole, nodes, gap)

    def by_highs(self, whole: bool, nodes: int, gap: float, enough: float = np.inf) -> Solved:
        inside, (count, variables) = highspy.Highs(), self.rows.shape
        for option, value in (
            ("output_flag", False), ("threads", 1), ("time_limit", TIME_LIMIT_S), ("mip_rel_gap", gap),
            ("mip_max_nodes", nodes), ("objective_bound", enough),  # which the dual simplex ends at
            *PROVING,
        ):  # fmt: skip
            inside.setOptionValue(option, value)
        if self.large:
            inside.setOptionValue("solver", "ipm")
            inside.setOptionValue("run_crossover", "off")
        sparse = csr_matrix(self.rows)
        cost = np.zeros(variables)
        cost[0] = 1.0
        inside.passModel(
            variables, count, sparse.nnz, highspy.MatrixFormat.kRowwise.value, highspy.ObjSense.kMinimize.value, 0.0,
            cost, self.low, self.high, self.least, np.full(count, np.inf), sparse.indptr.astype(np.int32),
            sparse.indices.astype(np.int32), sparse.data, (self.integers & whole).astype(np.int32),
        )  # fmt: skip
        inside.run()
        status, info = inside.getModelStatus(), inside.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return Solved(np.inf)
        if status == highspy.HighsModelStatus.kObjectiveBound:
            return Solved(enough)
        values = np.array(inside.getSolution().col_value) if info.primal_solution_status else None
        if whole and self.integers.any():
            return Solved(max(float(info.mip_dual_bound), 0.0), values)
        if status != highspy.HighsModelStatus.kOptimal:
            return Solved(0.0)
        return Solved(float(info.objective_function_value), values)

    def by_cbc(self, whole: bool, nodes: int, gap: float) -> Solved:
        model = pulp.LpProblem("bound", pulp.LpMinimize)
        highs = [None if np.isinf(high) else high for high in self.high.tolist()]
        kinds = [pulp.LpInteger if number else pulp.LpContinuous for number in (self.integers & whole).tolist()]
        lows = [None if np.isinf(low) else low for low in self.low.tolist()]
        ranges = zip(lows, highs, kinds, strict=True)
        variables = [pulp.LpVariable(f"v{i}", *limit) for i, limit in enumerate(ranges)]
        model += variables[0]
        sparse = csr_matrix(self.rows)
        for number, least in enumerate(self.least.tolist()):
            here = slice(sparse.indptr[number], sparse.indptr[number + 1])
            terms = zip(sparse.indices[here].tolist(), sparse.data[here].tolist(), strict=True)
            model += pulp.LpAffineExpression([(variables[i], factor) for i, factor in terms]) >= least
        limits = {"timeLimit": TIME_LIMIT_S, "gapRel": gap, "maxNodes": nodes or None}
        status = model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, **limits))
        if status == pulp.LpStatusInfeasible:
            return Solved(np.inf)
        if status != pulp.LpStatusOptimal or model.sol_status != pulp.LpSolutionOptimal:
            return Solved(0.0)
        values = np.array([variable.varValue or 0.0 for variable in variables])
        return Solved(float(values[0]) * (1 - gap), values)
