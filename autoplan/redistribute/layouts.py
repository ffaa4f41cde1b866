"""Every ordered layout of a tensor over some axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from autoplan.layout import Layout, State
from autoplan.redistribute.boxes import Dims


def enumerate_layouts(rank: int, axes: Sequence[str], beside: Mapping[str, tuple[State, ...]]) -> Iterator[Layout]:
    """All of them: each axis in one of its states beside the dims, or on a dim, in every order."""
    for count in range(len(axes) + 1):
        for split in itertools.combinations(axes, count):
            left = [axis for axis in axes if axis not in split]
            rests = [tuple(zip(left, states, strict=True)) for states in itertools.product(*(beside[a] for a in left))]
            for dims in arrangements(rank, split):
                yield from (Layout(dims, rest) for rest in rests)


def arrangements(rank: int, axes: Sequence[str]) -> Iterator[Dims]:
    """Every way to put all these axes on the dims of a tensor, in every order."""
    if rank == 0:
        yield from () if axes else ((),)
        return
    for order in itertools.permutations(axes):
        for cuts in itertools.combinations_with_replacement(range(len(axes) + 1), rank - 1):
            yield tuple(tuple(order[a:b]) for a, b in itertools.pairwise((0, *cuts, len(axes))))


def count_layouts(rank: int, states: Sequence[int]) -> int:
    """How many there are.

    states  for each axis the number of its states beside the dims
    """
    total = 0
    for count in range(len(states) + 1):
        placed = math.comb(count + rank - 1, rank - 1) * math.factorial(count) if rank else int(count == 0)
        chosen = itertools.combinations(range(len(states)), len(states) - count)
        total += placed * sum(math.prod(states[i] for i in left) for left in chosen)
    return total
