"""Who solves a program in arrays: HiGHS, handed the arrays, or CBC by a PuLP problem. The other isn't imported.

A program stays with its engine, and what it costs changes from run to run, or rows are added: HiGHS then begins where
it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from autoplan.deferred import deferred
from autoplan.solver.integer_program import TIME_LIMIT_S, Answer, Infeasible, OutOfTime, Program, solver_name

if TYPE_CHECKING:
    from autoplan.solver.cbc import Cbc
    from autoplan.solver.highs import Highs
else:
    Highs, Cbc = deferred("autoplan.solver.highs.Highs"), deferred("autoplan.solver.cbc.Cbc")

__all__ = ["TIME_LIMIT_S", "Answer", "Engine", "Infeasible", "OutOfTime", "engine", "solver_name"]


class Engine(Protocol):
    """A solver that holds one program and runs it with different costs."""

    program: Program

    def run(self, cost: np.ndarray, *, relaxed: bool, gap: float) -> Answer:
        """The least cost·v, of costs none of which is negative. Raises Infeasible.

        relaxed  whole numbers may be any
        gap      relative, at which a search for whole numbers ends
        """
        ...

    def grown(self, program: Program) -> Engine:
        """An engine for its program with more variables and rows behind those that it has, whose entries stay."""
        ...

    def limit(self, most: float) -> None:
        """What the last row comes to at most."""
        ...

    def allow(self, allowed: np.ndarray) -> None:
        """Which of the first variables, which are 0 or 1, may be 1."""
        ...


def engine(program: Program, time_limit_s: float = TIME_LIMIT_S) -> Engine:
    """time_limit_s: of each run."""
    return (Highs if solver_name() == "HiGHS" else Cbc)(program, time_limit_s)
