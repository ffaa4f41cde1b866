"""A program in arrays under construction: variables and rows are added in blocks."""

from __future__ import annotations

import numpy as np

from autoplan.deferred import deferred
from autoplan.solver.engines import Engine, engine
from autoplan.solver.integer_program import Answer, Infeasible, Program

csr_matrix = deferred("scipy.sparse.csr_matrix")


class ArrayProgram:
    """Entries in one place of the matrix add up."""

    def __init__(self) -> None:
        self.count = self.rows = 0  # variables and rows so far
        self.bounds: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # of each block: low, high, whole
        self.limits: list[tuple[np.ndarray, np.ndarray]] = []  # least, most
        self.entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # row, variable, factor
        self.engine: Engine | None = None  # with what stood when this was last solved in fractions

    def variables(self, low: np.ndarray | float, high: np.ndarray | float, *, whole: bool = False) -> np.ndarray:
        """The numbers of new variables, in the shape of their bounds."""
        low, high = np.broadcast_arrays(np.asarray(low, dtype=float), np.asarray(high, dtype=float))
        self.bounds.append((np.array(low).ravel(), np.array(high).ravel(), np.full(low.size, whole)))
        self.count += low.size
        return self.count - low.size + np.arange(low.size).reshape(low.shape)

    def add_rows(self, count: int, least: np.ndarray | float, most: np.ndarray | float) -> int:
        """The number of the first of so many rows, which have no entries yet."""
        self.limits.append((spread(least, (count,)), spread(most, (count,))))
        self.rows += count
        return self.rows - count

    def enter(self, rows: np.ndarray | int, variables: np.ndarray, factors: np.ndarray | float) -> None:
        """Factors of variables, each in its row."""
        shape = np.shape(variables)
        self.entries.append((spread(rows, shape).ravel(), np.ravel(variables), spread(factors, shape).ravel()))

    def add(self, constants: np.ndarray | float, *terms: tuple[np.ndarray, np.ndarray | float]) -> int:
        """Rows Σ factors·variables + constants ≥ 0, and the number of the first; of each term (variables, factors), its
        last dim is summed over and the first goes over the rows. One row: arrays without that."""
        least = -np.atleast_1d(np.asarray(constants, dtype=float))
        first = self.add_rows(len(least), least, np.inf)
        for variables, factors in terms:
            numbers = np.atleast_2d(variables)
            values = spread(factors, np.shape(variables)).reshape(numbers.shape)
            self.enter(first + np.arange(len(numbers))[:, None], numbers, values)
        return first

    @property
    def low(self) -> np.ndarray:
        """[variables] may be written to, as may ``high``."""
        return self.joined[0]

    @property
    def high(self) -> np.ndarray:
        return self.joined[1]

    @property
    def integers(self) -> int:
        """Whole numbers that are open."""
        low, high, whole = self.joined
        return int((whole & (low < high)).sum())

    @property
    def joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high, whole = (np.concatenate(parts) for parts in zip(*self.bounds, strict=True))
        self.bounds = [(low, high, whole)]
        return low, high, whole

    def program(self, *, limited: bool = False, flows: bool = False) -> Program:
        """What stands so far, without rows that are empty and hold; the rest as of ``Program``."""
        low, high, whole = self.joined
        least, most = (np.concatenate(parts) for parts in zip(*self.limits, strict=True))
        rows, columns, factors = (np.concatenate(parts) for parts in zip(*self.entries, strict=True))
        matrix = csr_matrix((factors, (rows, columns)), shape=(self.rows, self.count))
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        kept = (np.diff(matrix.indptr) > 0) | (least > 0) | (most < 0)
        starts = np.append(matrix.indptr[:-1][kept], matrix.nnz)
        return Program(low, high, whole, starts, matrix.indices, matrix.data, least[kept], most[kept], limited, flows)

    def solve(self, *, relaxed: bool = False, gap: float = 0.0) -> Answer:
        """The least v[0], to a relative gap; its bound is infinite where there is none.

        relaxed  in fractions: from then on rows that stand get no more entries, and the next time begins where this
                 ended
        """
        cost = np.zeros(self.count)
        cost[0] = 1.0
        program = self.program()
        try:
            if not relaxed:
                return engine(program).run(cost, relaxed=False, gap=gap)
            self.engine = engine(program) if self.engine is None else self.engine.grown(program)
            return self.engine.run(cost, relaxed=True, gap=gap)
        except Infeasible:
            return Answer(None, np.inf)


def spread(values: np.ndarray | float, shape: tuple[int, ...]) -> np.ndarray:
    """The values, broadcast to a shape. Programs are made of thousands of small blocks, on which ``np.broadcast_to``
    would spend more than everything else."""
    values = np.asarray(values)
    return values if values.shape == shape else np.full(shape, values)
