"""The cheapest path between two layouts of a space.

A*, guided by what must be received in any case (``Space.bounds``), starting from the direct exchange as the answer to
beat. A path never holds more than its ends. Of paths with the same price the one with fewer steps wins, then the one
with fewer exchanges, then the first in the space's fixed order: every rank that asks gets the same answer.
"""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np

from autoplan.layout import Layout
from autoplan.redistribute.space import Arc, Space

SAME = 1e-9  # relative difference of prices that is only rounding

Label = tuple[float, int, int]
"""(seconds, steps, exchanges) spent up to a layout."""


def shortest(space: Space, source: Layout, target: Layout, below_bytes: float) -> list[Arc] | None:
    """The steps of the cheapest path, None where there is none.

    below_bytes  what a rank uses while a step runs must stay below this
    """
    start, goal = space.number[source], space.number[target]
    return Search(space, start, goal, max(space.held[start], space.held[goal]), below_bytes).run()


def less(left: Label, right: Label) -> bool:
    """Whether one label is better than another, rounding aside."""
    if abs(left[0] - right[0]) > SAME * max(left[0], right[0]):
        return left[0] < right[0]
    return left[1:] < right[1:]


class Search:
    """One run.

    limit  bytes that a layout on the way may hold
    below  bytes below which a step must stay while it runs
    """

    def __init__(self, space: Space, start: int, goal: int, limit: int, below: float):
        self.space, self.start, self.goal, self.below = space, start, goal, below
        self.bounds = space.bounds(goal)
        self.allowed = space.held_bytes <= limit
        self.best: dict[int, Label] = {start: (0.0, 0, 0)}
        self.came: dict[int, tuple[int, Arc]] = {}
        self.queue: list[tuple[float, int, int, int, int]] = [(float(self.bounds[start]), 0, 0, 0, start)]
        self.pushed = itertools.count(1)

    def run(self) -> list[Arc] | None:
        done: set[int] = set()
        seconds, peaks = self.space.exchanges(self.start)
        if math.isfinite(seconds[self.goal]) and peaks[self.goal] < self.below:
            self.reach(self.start, self.space.exchange(self.start, self.goal), 1)
        while self.queue:
            here = heapq.heappop(self.queue)[-1]
            if here == self.goal:
                return self.path()
            if here not in done:
                done.add(here)
                self.expand(here)
        return None

    def expand(self, here: int) -> None:
        arcs, targets, seconds, peaks = self.space.arc_figures(here)
        for number in self.promising(here, targets, seconds, peaks):
            self.reach(here, arcs[number], 0)
        seconds, peaks = self.space.exchanges(here)
        for there in self.promising(here, self.space.everywhere, seconds, peaks):
            self.reach(here, self.space.exchange(here, there), 1)

    def promising(self, here: int, targets: np.ndarray, seconds: np.ndarray, peaks: np.ndarray) -> list[int]:
        """Those of several steps that may still lead to something better than what is known."""
        spent, steps, _ = self.best[here]
        known, most, _ = self.best.get(self.goal, (math.inf, steps + 3, 0))
        reached = spent + seconds + self.bounds[targets]
        limit = known * (1 + SAME) if math.isfinite(known) else math.inf
        close = reached <= limit
        if steps + 2 >= most:  # no fewer steps by a detour, so it has to be cheaper
            close &= (reached < known * (1 - SAME)) | (targets == self.goal)
        close &= np.isfinite(seconds) & self.allowed[targets] & (peaks < self.below)
        found: list[int] = np.flatnonzero(close).tolist()
        return found

    def reach(self, here: int, arc: Arc, exchanges: int) -> None:
        spent, steps, exchanged = self.best[here]
        label = (spent + arc.seconds, steps + 1, exchanged + exchanges)
        if arc.target in self.best and not less(label, self.best[arc.target]):
            return
        self.best[arc.target] = label
        self.came[arc.target] = (here, arc)
        bound = label[0] + float(self.bounds[arc.target])
        heapq.heappush(self.queue, (bound, label[1], label[2], next(self.pushed), arc.target))

    def path(self) -> list[Arc]:
        found, here = [], self.goal
        while here != self.start:
            here, arc = self.came[here]
            found.append(arc)
        return found[::-1]
