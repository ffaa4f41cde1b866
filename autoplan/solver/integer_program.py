"""A mixed-integer program in arrays, what answers it, and who does: HiGHS where it is installed, else CBC."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np

INSTALLED = importlib.util.find_spec("highspy") is not None
TIME_LIMIT_S = 300.0
"""Of one run, and of what takes far less: a backstop. HiGHS counts by the clock: where ten jobs share a processor, a
program of 4 s takes 35, and a plan mustn't depend on it."""


class Infeasible(Exception):
    """No assignment satisfies the problem."""


class OutOfTime(Infeasible):
    """The solver found none within its limit; whether there is one isn't known."""


@dataclass(frozen=True)
class Answer:
    """What a solver found.

    values  of the variables, None where nothing was found in time
    bound   what no values undercut: 0 where even the relaxation wasn't solved in time, since no cost is negative
    """

    values: np.ndarray | None
    bound: float


def solver_name() -> str:
    return "HiGHS" if INSTALLED else "CBC"


@dataclass(frozen=True)
class Program:
    """Constraints least ≤ A·v ≤ most, low ≤ v ≤ high. What v costs is said at each run.

    whole                     [variables] which are whole numbers
    starts, columns, factors  A's rows, compressed: row r has entries [starts[r], starts[r + 1])
    limited                   whether the last row gets another limit from run to run
    flows                     whether the relaxation is about one of flows: to presolve it takes little away
    """

    low: np.ndarray
    high: np.ndarray
    whole: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    factors: np.ndarray
    least: np.ndarray
    most: np.ndarray
    limited: bool = False
    flows: bool = False

    @property
    def variables(self) -> int:
        return len(self.low)

    @property
    def constraints(self) -> int:
        return len(self.least)
