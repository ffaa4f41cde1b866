"""Where the chain is cut into pipeline stages: the best of all cuts, by dynamic programming over thresholds.

seconds[k][i, j] is the time of one microbatch on stage k holding segments [i, j), infinite where no amount of
recomputation brings it under the memory limit; slow[k][i, j] is by how much every further microbatch lengthens the
step where that stage is the slowest: the same, less what 1F1B hides of its forwards (``StageModel.hidden_s``). The step
of a schedule without virtual stages takes (m-1) times its slowest stage and once through all, so over all cuts

    minimise   (m-1)·max_k slow[k][i_k, j_k]  +  Σ_k seconds[k][i_k, j_k]                           choose_cuts

With S(τ) the least sum of cuts whose stages all stay within τ (``shortest``: Bellman's recursion over the cuts), the
answer is the least (m-1)·τ + S(τ) over the times τ that occur. S falls as τ grows, so between two thresholds whose S
is known, (m-1)·(the lower) + S(the higher) bounds all that lie there: halving the thresholds and dropping what the
bound rules out leaves a few dozen of thousands. The least τ that any cut keeps is found by bisection.

An ILP of the same (one variable for each stage and interval, one for each threshold) gives the same answer and stands
in the tests beside trying every cut; it took a hundred times as long for 126 layers on 16 stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Interval = tuple[int, int]
SLACK = 1 + 1e-9    # rounding of sums of seconds
SAME = 1 - 1e-12    # what is better by less is rounding


@dataclass(frozen=True)
class Cuts:
    """Stage k holds segments [first, last); ``bound_s`` is proven, ``objective_s`` reached."""

    stages: tuple[Interval, ...]
    objective_s: float
    bound_s: float


def choose_cuts(
    seconds: Sequence[np.ndarray], microbatches: int, slow: Sequence[np.ndarray] | None = None
) -> Cuts | None:
    """The best cuts, or None where no cut fits.

    seconds  for each stage [N+1, N+1], infinite where impossible
    slow     likewise, infinite at the same places; None: the same
    """
    slow = seconds if slow is None else slow
    free = shortest(seconds, slow, np.inf)
    if free is None:
        return None
    thresholds = times_within(slow, slowest(slow, free[0]))
    low = least_bottleneck(slow, thresholds)
    best = free[0]
    known = {len(thresholds) - 1: free[1]}
    left = [(low, len(thresholds) - 1)] if microbatches > 1 else []
    while left:
        first, last = left.pop()
        limit_s = cost(seconds, best, microbatches, slow) * SAME
        if (microbatches - 1) * thresholds[first] + known[last] >= limit_s or first >= last:
            continue
        middle = first if first == low and low not in known else (first + last) // 2
        found = shortest(seconds, slow, thresholds[middle])
        assert found is not None, "every threshold from the least bottleneck on can be kept"
        known[middle] = found[1]
        if cost(seconds, found[0], microbatches, slow) < limit_s:
            best = found[0]
        left += [(middle + 1, last), (first, middle)] if middle > first else [(first + 1, last)]
    objective_s = cost(seconds, best, microbatches, slow)
    return Cuts(best, objective_s, objective_s)


def cost(
    seconds: Sequence[np.ndarray],
    stages: Sequence[Interval],
    microbatches: int,
    slow: Sequence[np.ndarray] | None = None,
) -> float:
    """(m-1) times the slowest stage, and once through all."""
    once_s = sum(float(seconds[k][at]) for k, at in enumerate(stages))
    return (microbatches - 1) * slowest(seconds if slow is None else slow, stages) + once_s


def slowest(slow: Sequence[np.ndarray], stages: Sequence[Interval]) -> float:
    return max(float(slow[k][at]) for k, at in enumerate(stages))


def times_within(seconds: Sequence[np.ndarray], most_s: float) -> np.ndarray:
    """Every time that occurs up to one, ascending; of those that differ by rounding alone the largest."""
    distinct = {part.tobytes(): part for part in seconds}.values()
    values = np.unique(np.concatenate([part[part <= most_s] for part in distinct]))
    return values[np.append(values[1:] > values[:-1] * SLACK, True)]


def least_bottleneck(seconds: Sequence[np.ndarray], thresholds: np.ndarray) -> int:
    """The number of the smallest threshold that every stage can keep."""
    low, high = 0, len(thresholds) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(seconds, thresholds[middle]) else (middle + 1, high)
    return low


def reaches(seconds: Sequence[np.ndarray], tau: float) -> bool:
    """Whether the chain can be cut into stages that all stay within τ."""
    at: np.ndarray = np.zeros(len(seconds[0]), dtype=bool)
    at[0] = True
    for part in seconds:
        at = np.any(at[:, None] & (part <= tau), axis=0)
    return bool(at[-1])


def shortest(
    seconds: Sequence[np.ndarray], slow: Sequence[np.ndarray], tau: float
) -> tuple[tuple[Interval, ...], float] | None:
    """The cuts of the least sum with every stage within τ, by dynamic programming over the cuts."""
    size = len(seconds[0])
    best = np.full(size, np.inf)
    best[0] = 0.0
    origins = []
    for part, limited in zip(seconds, slow, strict=True):
        total = best[:, None] + np.where(limited <= tau, part, np.inf)
        origins.append(total.argmin(axis=0))
        best = total.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    stages, end = [], size - 1
    for origin in reversed(origins):
        stages.append((int(origin[end]), int(end)))
        end = int(origin[end])
    return tuple(reversed(stages)), float(best[-1])
