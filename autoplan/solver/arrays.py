"""A mixed-integer program in arrays that grows row by row: HiGHS where it is installed, else CBC through PuLP.

minimise v[0] subject to A·v + c ≥ 0, low ≤ v ≤ high; some variables are whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pulp
from scipy.sparse import csr_matrix

from autoplan.solver.engines import INSTALLED, pick_solver

if INSTALLED:
    import highspy

TIME_LIMIT_S = 30.0  # of what takes far less: a backstop


@dataclass(frozen=True)
class Solved:
    """bound: what no values undercut, infinite where there are none; values: those found, None where none were."""

    bound: float
    values: np.ndarray | None = None


class ArrayProgram:
    """A program under construction: variables and rows are added in blocks."""

    def __init__(self) -> None:
        self.low, self.high = np.zeros(0), np.zeros(0)
        self.whole = np.zeros(0, dtype=bool)
        self.entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # of each block: row, variable, factor
        self.constants: list[float] = []

    def variables(
        self, low: np.ndarray | float, high: np.ndarray | float, *, whole: bool = False
    ) -> np.ndarray:
        """The numbers of new variables, in the shape of their bounds."""
        low, high = np.broadcast_arrays(np.asarray(low, dtype=float), np.asarray(high, dtype=float))
        first = len(self.low)
        self.low, self.high = np.append(self.low, low), np.append(self.high, high)
        self.whole = np.append(self.whole, np.full(low.size, whole))
        return first + np.arange(low.size).reshape(low.shape)

    def add(self, constants: np.ndarray | float, *terms: tuple[np.ndarray, np.ndarray | float]) -> None:
        """Rows Σ factors·variables + constants ≥ 0; of each term (variables, factors), its last dim is summed over and
        the first goes over the rows. One row: arrays without that."""
        constants = np.atleast_1d(np.asarray(constants, dtype=float))
        for variables, factors in terms:
            numbers = np.atleast_2d(variables)
            values = np.broadcast_to(np.asarray(factors, dtype=float), np.shape(variables)).reshape(numbers.shape)
            rows = np.broadcast_to(len(self.constants) + np.arange(len(numbers))[:, None], numbers.shape)
            self.entries.append((rows.ravel(), numbers.ravel(), values.ravel()))
        self.constants += constants.tolist()

    @property
    def integers(self) -> int:
        """Whole numbers that are open."""
        return int((self.whole & (self.low < self.high)).sum())

    @property
    def matrix(self) -> csr_matrix:
        rows, columns, factors = (np.concatenate(parts) for parts in zip(*self.entries, strict=True))
        found = csr_matrix((factors, (rows, columns)), shape=(len(self.constants), len(self.low)))
        found.eliminate_zeros()
        return found

    def solve(self, *, relaxed: bool = False, gap: float = 0.0) -> Solved:
        """To a relative gap; ``relaxed``: in fractions."""
        whole = self.whole & (not relaxed)
        return self.by_highs(whole, gap) if INSTALLED else self.by_cbc(whole, gap)

    def by_highs(self, whole: np.ndarray, gap: float) -> Solved:
        inside, matrix = highspy.Highs(), self.matrix
        for option, value in (
            ("output_flag", False), ("threads", 1), ("time_limit", TIME_LIMIT_S), ("mip_rel_gap", gap),
        ):  # fmt: skip
            inside.setOptionValue(option, value)
        cost = np.zeros(len(self.low))
        cost[0] = 1.0
        inside.passModel(
            len(cost), len(self.constants), matrix.nnz, highspy.MatrixFormat.kRowwise.value,
            highspy.ObjSense.kMinimize.value, 0.0, cost, self.low, self.high, -np.array(self.constants),
            np.full(len(self.constants), np.inf), matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32),
            matrix.data, whole.astype(np.int32),
        )  # fmt: skip
        inside.run()
        status, info = inside.getModelStatus(), inside.getInfo()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return Solved(np.inf)
        optimal = status == highspy.HighsModelStatus.kOptimal
        values = np.array(inside.getSolution().col_value) if optimal else None
        if whole.any():
            return Solved(max(float(info.mip_dual_bound), 0.0), values)
        return Solved(float(info.objective_function_value) if optimal else 0.0, values)

    def by_cbc(self, whole: np.ndarray, gap: float) -> Solved:
        model, matrix = pulp.LpProblem("arrays", pulp.LpMinimize), self.matrix
        bounds = zip(self.low.tolist(), self.high.tolist(), whole.tolist(), strict=True)
        variables = [
            pulp.LpVariable(f"v{i}", low, None if np.isinf(high) else high, pulp.LpInteger if n else pulp.LpContinuous)
            for i, (low, high, n) in enumerate(bounds)
        ]
        model += variables[0]
        for number, constant in enumerate(self.constants):
            here = slice(matrix.indptr[number], matrix.indptr[number + 1])
            terms = zip(matrix.indices[here].tolist(), matrix.data[here].tolist(), strict=True)
            model += pulp.LpAffineExpression([(variables[i], factor) for i, factor in terms]) >= -constant
        status = model.solve(pick_solver(TIME_LIMIT_S, gap))
        if status == pulp.LpStatusInfeasible:
            return Solved(np.inf)
        if status != pulp.LpStatusOptimal or model.sol_status != pulp.LpSolutionOptimal:
            return Solved(0.0)
        values = np.array([variable.varValue or 0.0 for variable in variables])
        return Solved(float(values[0]) * (1 - gap if whole.any() else 1.0), values)
