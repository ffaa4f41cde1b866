"""A plain shortest path: Dijkstra's algorithm over ordered layouts, with slices, all-gathers and all-to-alls of one
axis at the innermost place of a dim. The price of a step is the caller's, the bytes it receives unless given."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from autoplan.redistribute.boxes import Dims
from tests.rivals.steps import Sizes, Step, after, gather, received, slice_, swap

Price = Callable[[Dims, Step, Sizes], Fraction]


def neighbours(dims: Dims, sizes: Sizes) -> Iterator[Step]:
    """Every step that can be taken from a layout."""
    for dim, axes in enumerate(dims):
        if axes:
            yield gather(axes[-1], dim)
            yield from (swap(axes[-1], dim, other) for other in range(len(dims)) if other != dim)
    used = {axis for axes in dims for axis in axes}
    yield from (slice_(axis, dim) for axis in sizes if axis not in used for dim in range(len(dims)))


def tree(source: Dims, sizes: Sizes, price: Price = received) -> Mapping[Dims, tuple[Step, ...]]:
    """The cheapest steps from one layout to every other; among equals the fewest."""
    queue: list[tuple[Fraction, int, int, Dims, tuple[Step, ...]]] = [(Fraction(0), 0, 0, source, ())]
    found: dict[Dims, tuple[Step, ...]] = {}
    pushed = 0
    while queue:
        paid, length, _, dims, path = heapq.heappop(queue)
        if dims in found:
            continue
        found[dims] = path
        for step in neighbours(dims, sizes):
            there = after(dims, step)
            if there not in found:
                pushed += 1
                key = (paid + price(dims, step, sizes), length + 1, pushed)
                heapq.heappush(queue, (*key, there, (*path, step)))
    return found
