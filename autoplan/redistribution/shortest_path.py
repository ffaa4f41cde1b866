"""The cheapest path between two layouts of a space, by dynamic programming over the number of steps.

    d_0(goal) = 0,    d_k(u) = min(d_{k-1}(u), min over v of w(u, v) + d_{k-1}(v))

with w the seconds of the cheapest single step: Bellman's recursion, for all layouts towards one goal at once. A path
passes only through layouts that hold no more than its ends. Of paths with the same price the one with fewest steps is
taken, then the table's steps before an exchange, then the first in the space's fixed order: every rank that asks gets
the same answer.
"""

import math
from dataclasses import dataclass

import numpy as np

from autoplan.ir.layout import Layout
from autoplan.redistribution.space.layout_graph import Space

SAME = 1e-9  # relative difference of prices that is only rounding


@dataclass(frozen=True)
class Hop:
    """One step of a path: numbers of layouts, and whether it is an exchange."""

    source: int
    target: int
    exchange: bool


def shortest(space: Space, source: Layout, target: Layout) -> list[Hop] | None:
    """The steps of the cheapest path, None where there is none."""
    start, goal = space.number[source], space.number[target]
    limit = int(max(space.held_bytes[start], space.held_bytes[goal]))
    left = towards(space, goal, limit)
    least = left[-1][start]
    if not math.isfinite(least):
        return None
    steps = next(k for k, seconds in enumerate(left) if not_more(seconds[start], least))
    found, here = [], start
    for k in range(steps - 1, -1, -1):
        hop = next_hop(space, here, left[k], limit)
        found.append(hop)
        here = hop.target
    assert here == goal, "a path of the counted steps leads to the goal"
    return found


def towards(space: Space, goal: int, limit: int) -> list[np.ndarray]:
    """d_0, d_1, … of every layout; kept by the space, since many sources share a goal."""
    key = (goal, limit)
    if key not in space.toward:
        allowed = space.held_bytes <= limit
        single = space.seconds.min(axis=0)
        single = np.where(allowed[:, None] & allowed[None, :], single, np.inf)
        found = [np.full(len(space.layouts), np.inf)]
        found[0][goal] = 0.0
        while True:
            better = np.minimum(found[-1], (single + found[-1][None, :]).min(axis=1))
            if not (better < found[-1] * (1 - SAME)).any():
                break
            found.append(better)
        space.toward[key] = found
    return space.toward[key]


def next_hop(space: Space, here: int, left: np.ndarray, limit: int) -> Hop:
    """The first step of a cheapest path whose rest costs ``left``."""
    ways = space.seconds[:, here] + left
    ways = np.where(space.held_bytes <= limit, ways, np.inf)
    exchange, target = divmod(int(np.argmax(not_more(ways, ways.min()))), len(left))
    return Hop(here, target, bool(exchange))


def not_more(seconds: np.ndarray | float, least: float) -> np.ndarray | bool:
    """Where a price is no more than another, rounding aside."""
    return seconds <= least * (1 + SAME)
