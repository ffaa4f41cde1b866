"""Where the chain is cut into pipeline stages: one ILP, by thresholds.

seconds[k][i, j] is the time of one microbatch on stage k holding segments [i, j), infinite where no amount of
recomputation brings it under the stage's wall. With y[k,i,j] = 1 where stage k holds [i, j) and w[t] = 1 where the
bottleneck is the threshold τ_t (one of the times that occur):

    minimise   (m-1)·Σ_t τ_t w[t]  +  Σ y[k,i,j]·seconds[k][i,j]                            choose_cuts
    Σ_t w[t] = 1                                                                             choose_cuts
    y is a path: stage 0 begins at 0, the last ends at N, each begins where the one before ended      connect
    Σ_{(i,j): seconds > τ_t} y[k,i,j]  ≤  Σ_{t' > t} w[t']     for each stage k, threshold t          bound

The step of a schedule without interleaving takes (m-1) times its slowest stage and once through all (1F1B and GPipe
alike, messages aside). An upper bound from the least feasible bottleneck removes nearly every interval beforehand.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from autoplan.search.solve import pick_solver

Interval = tuple[int, int]
SLACK = 1 + 1e-9  # rounding of sums of seconds


@dataclass(frozen=True)
class Cuts:
    """Stage k holds segments [first, last); ``bound_s`` is proven, ``objective_s`` reached."""

    stages: tuple[Interval, ...]
    objective_s: float
    bound_s: float
    variables: int
    constraints: int


def choose_cuts(seconds: Sequence[np.ndarray], microbatches: int, time_limit_s: float = 10.0) -> Cuts | None:
    """The best cuts, or None where no cut fits. ``seconds``: for each stage [N+1, N+1], infinite where impossible."""
    first = quick_cuts(seconds, microbatches)
    if first is None or first.objective_s <= first.bound_s * SLACK:
        return first
    kept = intervals_below(seconds, microbatches, first)
    thresholds = distinct([float(seconds[k][i, j]) for k, part in enumerate(kept) for i, j in part])
    lp = pulp.LpProblem("stages", pulp.LpMinimize)
    w = [pulp.LpVariable(f"w{t}", 0, 1, pulp.LpBinary) for t in range(len(thresholds))]
    y = [
        {(i, j): pulp.LpVariable(f"y{k}_{i}_{j}", 0, 1, pulp.LpBinary) for i, j in part} for k, part in enumerate(kept)
    ]
    scale = 1e3 / first.objective_s
    terms = [(w[t], (microbatches - 1) * tau * scale) for t, tau in enumerate(thresholds)]
    terms += [(v, float(seconds[k][at]) * scale) for k, row in enumerate(y) for at, v in row.items()]
    lp += pulp.LpAffineExpression(terms)
    lp += pulp.lpSum(w) == 1
    connect(lp, y, len(seconds[0]) - 1)
    for k, row in enumerate(y):
        bound(lp, row, seconds[k], w, thresholds)
    status = lp.solve(pick_solver(time_limit_s, 1e-6))
    sizes = (len(lp.variables()), len(lp.constraints))
    if status != pulp.LpStatusOptimal:
        return Cuts(first.stages, first.objective_s, first.bound_s, *sizes)
    taken = tuple(max((v.varValue or 0.0, at) for at, v in row.items())[1] for row in y)
    objective_s = cost(seconds, taken, microbatches)
    best = taken if objective_s <= first.objective_s else first.stages
    objective_s = min(objective_s, first.objective_s)
    proven = min(objective_s, (pulp.value(lp.objective) or 0.0) / scale)
    return Cuts(best, objective_s, max(first.bound_s, proven), *sizes)


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


def distinct(values: Sequence[float]) -> list[float]:
    """Ascending, those that differ by rounding alone merged into the larger."""
    found: list[float] = []
    for value in sorted(values):
        if found and value <= found[-1] * SLACK:
            found[-1] = value
        else:
            found.append(value)
    return found


def cost(seconds: Sequence[np.ndarray], stages: Sequence[Interval], microbatches: int) -> float:
    """(m-1) times the slowest stage, and once through all."""
    times = [float(seconds[k][at]) for k, at in enumerate(stages)]
    return (microbatches - 1) * max(times) + sum(times)


def quick_cuts(seconds: Sequence[np.ndarray], microbatches: int) -> Cuts | None:
    """The cuts of the least bottleneck and, of these, the least sum; bounded by the least bottleneck and the least sum
    of any cuts."""
    free = shortest(seconds, np.inf)
    if free is None:
        return None
    tau = least_bottleneck(seconds)
    best = shortest(seconds, tau)
    assert best is not None
    lower = (microbatches - 1) * tau + free[1]
    found = min((best[0], free[0]), key=lambda stages: cost(seconds, stages, microbatches))
    objective_s = cost(seconds, found, microbatches)
    return Cuts(found, objective_s, min(lower, objective_s), 0, 0)


def least_bottleneck(seconds: Sequence[np.ndarray]) -> float:
    """The smallest τ under which every stage can stay."""
    values = np.unique(np.concatenate([part[np.isfinite(part)] for part in seconds]))
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        reached = reach(seconds, float(values[middle]))
        low, high = (low, middle) if reached[-1][-1] else (middle + 1, high)
    return float(values[low])


def reach(seconds: Sequence[np.ndarray], tau: float) -> list[np.ndarray]:
    """For each stage the cuts at which it can begin, and last those at which the pipeline can end."""
    at = np.zeros(len(seconds[0]), dtype=bool)
    at[0] = True
    found = [at]
    for part in seconds:
        at = (at[:, None] & (part <= tau) & np.isfinite(part)).any(axis=0)
        found.append(at)
    return found


def shortest(seconds: Sequence[np.ndarray], tau: float) -> tuple[tuple[Interval, ...], float] | None:
    """The cuts of the least sum with every stage within τ, by dynamic programming over the cuts."""
    size = len(seconds[0])
    best = np.full(size, np.inf)
    best[0] = 0.0
    origins = []
    for part in seconds:
        total = best[:, None] + np.where(part <= tau, part, np.inf)
        origins.append(total.argmin(axis=0))
        best = total.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    stages, end = [], size - 1
    for origin in reversed(origins):
        stages.append((int(origin[end]), int(end)))
        end = int(origin[end])
    return tuple(reversed(stages)), float(best[-1])


def intervals_below(seconds: Sequence[np.ndarray], microbatches: int, upper: Cuts) -> list[list[Interval]]:
    """For each stage the intervals that a solution no worse than ``upper`` may hold."""
    free = shortest(seconds, np.inf)
    assert free is not None
    tau = np.inf if microbatches == 1 else (upper.objective_s - free[1]) / (microbatches - 1) * SLACK
    mirrored = [part.T[::-1, ::-1] for part in reversed(seconds)]
    begins = reach(seconds, tau)
    ends = [at[::-1] for at in reversed(reach(mirrored, tau))]
    kept = []
    for k, part in enumerate(seconds):
        allowed = (part <= tau) & np.isfinite(part) & begins[k][:, None] & ends[k + 1][None, :]
        kept.append([(int(i), int(j)) for i, j in np.argwhere(allowed)])
    return kept
