"""The cuts of a chain as an ILP: an oracle for ``search.inter_op.partition``, told from it by its method alone.

With y[k,i,j] = 1 where stage k holds segments [i, j) and w[t] = 1 where the bottleneck is the threshold τ_t (one of the
times that occur):

    minimise   (m-1)·Σ_t τ_t w[t]  +  Σ y[k,i,j]·seconds[k][i,j]
    Σ_t w[t] = 1
    y is a path: stage 0 begins at 0, the last ends at N, each begins where the one before ended      connect
    Σ_{(i,j): seconds > τ_t} y[k,i,j]  ≤  Σ_{t' > t} w[t']     for each stage k, threshold t          bound
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pulp

from autoplan.search.inter_op.partition import SLACK, Interval
from autoplan.solver.integer_program import INSTALLED

TIME_LIMIT_S = 300.0  # of what takes a second, but for a machine that does much else


def least_objective(seconds: Sequence[np.ndarray], microbatches: int) -> float:
    """Infinite where no cut fits."""
    size = len(seconds[0])
    kept = [[(i, j) for i in range(size) for j in range(size) if np.isfinite(part[i, j])] for part in seconds]
    thresholds = sorted({float(part[at]) for part, row in zip(seconds, kept, strict=True) for at in row})
    if not thresholds:
        return np.inf
    lp = pulp.LpProblem("stages", pulp.LpMinimize)
    w = [pulp.LpVariable(f"w{t}", 0, 1, pulp.LpInteger) for t in range(len(thresholds))]
    y = [
        {(i, j): pulp.LpVariable(f"y{k}_{i}_{j}", 0, 1, pulp.LpInteger) for i, j in row} for k, row in enumerate(kept)
    ]
    terms = [(w[t], (microbatches - 1) * tau) for t, tau in enumerate(thresholds)]
    terms += [(v, float(seconds[k][at])) for k, row in enumerate(y) for at, v in row.items()]
    lp += pulp.LpAffineExpression(terms)
    lp += pulp.lpSum(w) == 1
    connect(lp, y, size - 1)
    for k, row in enumerate(y):
        bound(lp, row, seconds[k], w, thresholds)
    solver = pulp.HiGHS if INSTALLED else pulp.PULP_CBC_CMD
    if lp.solve(solver(msg=False, timeLimit=TIME_LIMIT_S, gapRel=1e-9, threads=1)) == pulp.LpStatusInfeasible:
        return np.inf
    assert lp.sol_status == pulp.LpSolutionOptimal, f"none after {TIME_LIMIT_S} s"
    return float(pulp.value(lp.objective))


def connect(lp: pulp.LpProblem, y: Sequence[dict[Interval, pulp.LpVariable]], segments: int) -> None:
    """Each stage holds one interval and begins where the one before it ended."""
    lp += pulp.lpSum(v for (i, _), v in y[0].items() if i == 0) == 1
    lp += pulp.lpSum(v for (_, j), v in y[-1].items() if j == segments) == 1
    for before, after in itertools.pairwise(y):
        for cut in sorted({j for _, j in before} | {i for i, _ in after}):
            ends = [(v, 1) for (_, j), v in before.items() if j == cut]
            begins = [(v, -1) for (i, _), v in after.items() if i == cut]
            lp += pulp.LpAffineExpression(ends + begins) == 0
        lp += pulp.lpSum(after.values()) == 1


def bound(
    lp: pulp.LpProblem,
    row: dict[Interval, pulp.LpVariable],
    seconds: np.ndarray,
    w: Sequence[pulp.LpVariable],
    thresholds: Sequence[float],
) -> None:
    """No interval that is slower than the threshold taken."""
    for t, tau in enumerate(thresholds[:-1]):
        slower = [(v, 1) for at, v in row.items() if seconds[at] > tau * SLACK]
        if slower:
            lp += pulp.LpAffineExpression(slower + [(later, -1) for later in w[t + 1 :]]) <= 0
