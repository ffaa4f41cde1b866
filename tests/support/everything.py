"""An operator problem by trying everything: the time and the bytes of each of its assignments, and nothing of the
search's but the problem itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.search.intra_op.solve import Weights

MOST_ARCS, MOST_LAYOUTS = 12, 5  # of a tensor, up to which each subset of its arcs is tried


@dataclass(frozen=True)
class Everything:
    """Of every assignment, one dim for each group: seconds (infinite where a tensor isn't reached), and bytes."""

    time_s: np.ndarray
    state_bytes: np.ndarray
    kept_bytes: np.ndarray

    def least(self, weights: Weights) -> float:
        """The least objective at these prices of bytes."""
        prices = self.time_s + weights.state * self.state_bytes + weights.kept * self.kept_bytes
        return float(prices.min())

    def fastest_under(self, wall: float) -> float:
        """The least time of those whose bytes are at most these; infinite where none is."""
        fits = self.state_bytes + self.kept_bytes <= wall * (1 + 1e-12)
        return float(np.where(fits, self.time_s, math.inf).min())

    def bytes_of(self, best: bool) -> float:
        """The fewest bytes of any assignment that is possible, or, of the fastest ones, the fewest."""
        possible = self.time_s <= self.time_s.min() * (1 + 1e-12) if best else np.isfinite(self.time_s)
        return float((self.state_bytes + self.kept_bytes)[possible].min())


def everything(problem: Problem) -> Everything:
    shape = tuple(len(g.options) for g in problem.groups)
    time_s, state, kept = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for index, group in enumerate(problem.groups):
        time_s += along(group.time_s, index, len(shape))
        state += along(group.state_bytes, index, len(shape))
        kept += along(group.kept_bytes, index, len(shape))
    for tensor in problem.tensors:
        time_s += redistribution_s(tensor, len(shape))
        kept += kept_of(tensor, len(shape))
    return Everything(time_s, state, kept)


def along(values: np.ndarray, dim: int, rank: int) -> np.ndarray:
    """Values of a group's options, to be broadcast over the assignments."""
    return np.asarray(values).reshape([-1 if d == dim else 1 for d in range(rank)])


def redistribution_s(tensor: Tensor, rank: int) -> np.ndarray:
    """Seconds of the cheapest tree in each assignment, to be broadcast."""
    ends = [along(taken, group, rank) for group, taken in tensor.sinks]
    return trees_s(tensor, len(ends))[(along(tensor.given, tensor.source, rank), *ends)]


def kept_of(tensor: Tensor, rank: int) -> np.ndarray:
    """Bytes kept in each assignment, each layout's once, to be broadcast."""
    total = np.zeros([1] * rank)
    for layout, size in enumerate(tensor.kept_bytes):
        keeps = np.zeros([1] * rank, dtype=bool)
        for group, places in tensor.keepers:
            keeps = keeps | (along(places, group, rank) == layout)
        total = total + np.where(keeps, size, 0.0)
    return total


def trees_s(tensor: Tensor, ends: int) -> np.ndarray:
    """[layouts] * (1 + ends): the least price of arcs that lead from the first to all others."""
    if len(tensor.arcs) <= MOST_ARCS and len(tensor.layouts) <= MOST_LAYOUTS:
        return trees_by_subsets(tensor, ends)
    return trees_by_branches(tensor, ends)


def trees_by_subsets(tensor: Tensor, ends: int) -> np.ndarray:
    """By every subset of the arcs: what is reached, and what it costs."""
    layouts, arcs = range(len(tensor.layouts)), [(int(a), int(b)) for a, b in tensor.arcs]
    subsets = np.arange(1 << len(arcs))
    taken = [(subsets >> n) & 1 for n in range(len(arcs))]
    price = sum((on * float(p) for on, p in zip(taken, tensor.arc_s, strict=True)), np.zeros(len(subsets)))
    table = np.empty([len(layouts)] * (1 + ends))
    for root in layouts:
        reached = np.full(len(subsets), 1 << root)
        for _ in layouts:
            for (a, b), on in zip(arcs, taken, strict=True):
                reached |= (on & (reached >> a)) << b
        least = [price[reached & mask == mask].min(initial=math.inf) for mask in range(1 << len(layouts))]
        for wanted in itertools.product(layouts, repeat=ends):
            table[(root, *wanted)] = least[mask_of(wanted)]
    return table


def mask_of(layouts: Sequence[int]) -> int:
    mask = 0
    for layout in layouts:
        mask |= 1 << layout
    return mask


def trees_by_branches(tensor: Tensor, ends: int) -> np.ndarray:
    """By every place at which a tree to at most three layouts may branch, its parts being shortest ways."""
    assert ends <= 3
    way = shortest(tensor)
    if ends == 1:
        return way
    two = least_sum(way, way[:, :, None] + way[:, None, :])
    if ends == 2:
        return two
    apart = two[:, :, :, None] + way[:, None, None, :]  # v, a, b, c: a and b together, c for itself
    best = np.minimum(apart, np.minimum(apart.transpose(0, 1, 3, 2), apart.transpose(0, 3, 2, 1)))
    return least_sum(way, best)


def shortest(tensor: Tensor) -> np.ndarray:
    """[layouts, layouts]: the least price of a way (Floyd and Warshall)."""
    count = len(tensor.layouts)
    way = np.where(np.eye(count, dtype=bool), 0.0, math.inf)
    for (a, b), price in zip(tensor.arcs, tensor.arc_s, strict=True):
        way[a, b] = min(way[a, b], price)
    for via in range(count):
        way = np.minimum(way, way[:, via, None] + way[None, via, :])
    return way


def least_sum(way: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """min over v of way[r, v] + rest[v, …]."""
    found = [(row.reshape(-1, *[1] * (rest.ndim - 1)) + rest).min(axis=0) for row in way]
    return np.stack(found)
