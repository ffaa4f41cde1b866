"""Redistributions over one axis that divides every dim it splits: most of those that a search asks for.

No exchange beats a step of the table there, and a tensor is split or it is not: the layouts are a handful of states,
and the cheapest path between two of them is found by trying every path that passes none twice.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autoplan.ir.layout import State
from autoplan.redistribution.steps import Step, find_step

Seconds = Callable[[str, int], float]
"""Of a kind of collective over the axis, known by so many bytes."""

SAME = 1e-9  # relative difference of prices that is only rounding (as in ``search``)


@dataclass(frozen=True)
class SingleAxis:
    """One axis, and the tensor on the ranks along it.

    ways         members along the axis
    whole_bytes  of the part that the axis may split
    carries      whether the tensor carries a gradient
    """

    ways: int
    whole_bytes: int
    carries: bool

    def held_bytes(self, state: State) -> int:
        return self.whole_bytes // self.ways if state.kind == "S" else self.whole_bytes

    def path(
        self, source: State, target: State, beside: Sequence[State], seconds: Seconds
    ) -> tuple[tuple[State, ...], float] | None:
        """The states after each step of the cheapest path, and its seconds forward and backward; None where none leads
        there. A path holds no more than its ends; of those that cost the same it is the one with fewest steps.

        beside  the states in which the axis may be where it splits no dim
        """
        limit = max(self.held_bytes(source), self.held_bytes(target))
        stations = [s for s in beside if s not in (source, target) and self.held_bytes(s) <= limit]
        found: tuple[tuple[State, ...], float] | None = None
        for between in paths(stations):
            states = (source, *between, target)
            costs = [self.step_s(a, b, seconds) for a, b in itertools.pairwise(states)]
            if None in costs:
                continue
            total = sum(cost for cost in costs if cost is not None)
            if found is None or total < found[1] * (1 - SAME):
                found = (states[1:], total)
        return found

    def step_s(self, source: State, target: State, seconds: Seconds) -> float | None:
        """One step of the table, forward and backward; None where there is none."""
        step = find_step(source, target, self.carries)
        if step is None:
            return None
        size = max(self.held_bytes(source), self.held_bytes(target))
        return sum(seconds(kind, size) for kind in kinds(step, self.carries))


def kinds(step: Step, carries: bool) -> tuple[str, ...]:
    """What crosses the links, forward and backward."""
    return tuple(kind for kind in (step.forward, step.backward if carries else "") if kind)


def paths(stations: Sequence[State]) -> Iterator[tuple[State, ...]]:
    """Every way through some of the stations, the shortest first."""
    for count in range(len(stations) + 1):
        yield from itertools.permutations(stations, count)
