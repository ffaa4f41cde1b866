"""A plain shortest path: Dijkstra's algorithm over ordered layouts, with slices, all-gathers and all-to-alls at the
innermost places of a dim. A step takes one axis, or several where the caller says so; its price is the caller's, too,
the bytes it receives unless given."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from autoplan.redistribution.exchange.boxes import Dims
from tests.bench.rivals.steps import Sizes, Step, after, gather, received, slice_, swap

Price = Callable[[Dims, Step, Sizes], Fraction | float]


def neighbours(dims: Dims, sizes: Sizes, together: int) -> Iterator[Step]:
    """Every step of up to ``together`` axes that can be taken from a layout."""
    for dim, axes in enumerate(dims):
        for count in range(1, min(together, len(axes)) + 1):
            yield gather(dim, *axes[-count:])
            yield from (swap(dim, other, *axes[-count:]) for other in range(len(dims)) if other != dim)
    free = [axis for axis in sizes if not any(axis in axes for axes in dims)]
    yield from (slice_(dim, axis) for axis in free for dim in range(len(dims)))


def tree(source: Dims, sizes: Sizes, price: Price = received, together: int = 1) -> Mapping[Dims, tuple[Step, ...]]:
    """The cheapest steps from one layout to every other; among equals the fewest."""
    queue: list[tuple[Fraction | float, int, int, Dims, tuple[Step, ...]]] = [(0, 0, 0, source, ())]
    found: dict[Dims, tuple[Step, ...]] = {}
    pushed = 0
    while queue:
        paid, length, _, dims, path = heapq.heappop(queue)
        if dims in found:
            continue
        found[dims] = path
        for step in neighbours(dims, sizes, together):
            there = after(dims, step)
            if there not in found:
                pushed += 1
                key = (paid + price(dims, step, sizes), length + 1, pushed)
                heapq.heappush(queue, (*key, there, (*path, step)))
    return found
