"""Branch and bound over a large program of choices, one of each group, whose relaxation leaves fractions.

HiGHS's own search presolves such a program anew and looks for answers within it, which takes minutes where a relaxation
that goes on from the last one takes a fraction of a second. Rounding a relaxation gives a good answer at once, since
what follows from the choices goes with any. After so many nodes it ends, and the bound says what may be left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WHOLE = 1e-5  # how far from 1 the variable of an option that is taken may be
NODES = 16  # relaxations solved, more only for a first answer: together they take a few times as long as the first

Ways = Sequence[object]
"""What an option does, aspect by aspect: as many as others of its group have."""
Relaxed = Callable[[np.ndarray], tuple[np.ndarray | None, float]]
"""Of the options that are allowed: (the variables, None where there are none; what no assignment costs less than, which
is infinite where there is none)."""
Priced = Callable[[Sequence[int]], float]
"""What an assignment costs; infinite where it is none."""


@dataclass(frozen=True)
class BranchNode:
    """Some of the options.

    bound  which no assignment of theirs undercuts, by the relaxation of more
    """

    bound: float
    allowed: np.ndarray


@dataclass
class Branching:
    """Goes deeper for as long as a relaxation leaves fractions, then on from the node of the least bound.

    groups  of each the ways of its options, which are the first variables
    gap     relative, at which it ends
    best, best_cost  the best assignment so far, and what it costs
    closed  the least bound of the nodes that were left
    """

    groups: Sequence[Sequence[Ways]]
    relaxed: Relaxed
    priced: Priced
    gap: float
    best: Sequence[int] | None = None
    best_cost: float = np.inf
    closed: float = np.inf

    def __post_init__(self) -> None:
        self.first = np.concatenate([[0], np.cumsum([len(options) for options in self.groups])]).astype(int)
        self.open = [BranchNode(0.0, np.ones(self.first[-1], dtype=bool))]

    def run(self) -> tuple[Sequence[int] | None, float]:
        """(the best assignment that was found, what none undercuts)."""
        for number in itertools.count():
            if not self.open or (number >= NODES and self.best is not None):
                break
            children = self.divided(self.open.pop())
            self.open += children
            if not children:  # the node of the least bound comes next
                self.open.sort(key=lambda node: -node.bound)
        return self.best, min([self.best_cost, self.closed, *(node.bound for node in self.open)])

    def divided(self, node: BranchNode) -> list[BranchNode]:
        """Its halves, the more promising one last; none where no more is to be found in it."""
        values, bound = self.relaxed(node.allowed) if self.worth(node.bound) else (None, node.bound)
        bound = max(bound, node.bound)
        shares = [] if values is None else np.split(values[: self.first[-1]], self.first[1:-1])
        if shares:
            self.take([int(share.argmax()) for share in shares])
        group = min(range(len(shares)), key=lambda g: float(shares[g].max()), default=None)
        if group is None or shares[group].max() >= 1 - WHOLE or not self.worth(bound):
            self.closed = min(self.closed, bound)
            return []
        alike, others = node.allowed.copy(), node.allowed.copy()
        own = slice(self.first[group], self.first[group + 1])
        same = like_the_largest(self.groups[group], shares[group])
        alike[own] &= same
        others[own] &= ~same
        return [BranchNode(bound, others), BranchNode(bound, alike)]

    def worth(self, bound: float) -> bool:
        return bound < self.best_cost * (1 - self.gap)

    def take(self, options: Sequence[int]) -> None:
        cost = self.priced(options)
        if cost < self.best_cost:
            self.best, self.best_cost = options, cost


def like_the_largest(ways: Sequence[Ways], share: np.ndarray) -> np.ndarray:
    """The options that do the same as that of the largest share in one aspect: that in which the others differ most."""
    largest = int(share.argmax())
    same = np.array([[here == there for here, there in zip(way, ways[largest], strict=True)] for way in ways])
    different = share @ ~same
    aspect = int(different.argmax())
    return same[:, aspect] if different[aspect] > WHOLE else np.arange(len(ways)) == largest
