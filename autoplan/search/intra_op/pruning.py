"""A problem without what no best assignment needs: options that another one dominates, arcs that others compose.

Option s of an operator is dropped where some s' takes no longer although every tensor goes on to where s has it,

    time(s') + Σ_t dist_t(in_s -> in_s') + Σ_t dist_t(out_s' -> out_s) ≤ time(s)               dominates

and keeps no more bytes. Whatever the other operators do, s may then be exchanged for s': the ways that tensors have
already are kept, so each pays its distance at most. It holds since a tensor pays for each arc once (shared flow). What
is kept for the backward is shared between those who keep it, so s' has to keep a tensor in the same layout, or not at
all; or fewer bytes of it where no other operator keeps it. That a layout replicates, or holds a gradient's summands,
says nothing by itself: such options go only where another dominates them.

An arc is dropped where others lead from its start to its end for no more, or where it lies on no way at all.

Next to nothing is dominated (3% of the options of T5's blocks on one axis, 2% of the variables of Mixtral's on two, of
ViT-22B's on three), and finding it takes as long as a solution, so it is for problems whose solution takes far longer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.search.intra_op.problem import Problem, Tensor

SAME = 1e-12  # relative: rounding of sums of seconds
TIE = 1e-13  # of the dearest arc: for each axis that an arc changes, so that of ways that cost alike one is left
LARGE = 100_000  # variables, below which a problem is solved sooner than it is pruned


def pruned_if_large(problem: Problem) -> Problem:
    """Without what is needless, where finding that takes less than it saves."""
    return prune(problem) if problem.variables >= LARGE else problem


def prune(problem: Problem) -> Problem:
    """The smaller problem; its optimum is the same at every price of bytes."""
    distances = [distances_of(t) for t in problem.tensors]
    smaller = problem.with_options([options_kept(problem, i, distances) for i in range(len(problem.groups))])
    pairs = zip(smaller.tensors, distances, strict=True)
    return Problem(smaller.groups, tuple(with_arcs(t, needed_arcs(t, distance)) for t, distance in pairs))


def with_arcs(tensor: Tensor, keep: np.ndarray) -> Tensor:
    return replace(tensor, arcs=tensor.arcs[keep], arc_s=tensor.arc_s[keep])


def distances_of(tensor: Tensor) -> np.ndarray:
    """[layouts, layouts] least seconds from each to each, infinite where there is no way (Bellman 1958): ties count
    as dearer, the more axes an arc changes."""
    count = len(tensor.layouts)
    distance = np.full((count, count), np.inf)
    np.fill_diagonal(distance, 0.0)
    if not len(tensor.arcs):
        return distance
    order = np.argsort(tensor.arcs[:, 1], kind="stable")
    source, target = tensor.arcs[order].T
    price_s = tied(tensor)[order]
    ends, starts = np.unique(target, return_index=True)
    while True:
        found = np.minimum.reduceat(distance[:, source] + price_s, starts, axis=1)
        if not (found < distance[:, ends]).any():
            return distance
        distance[:, ends] = np.minimum(distance[:, ends], found)


def tied(tensor: Tensor) -> np.ndarray:
    """The arcs' seconds with a trifle for the number of axes that each changes, squared."""
    states = [tuple(layout.states().items()) for layout in tensor.layouts]
    numbers = {pair: n for n, pair in enumerate(dict.fromkeys(pair for each in states for pair in each))}
    codes = np.array([[numbers[pair] for pair in each] for each in states])
    changes = (codes[tensor.arcs[:, 0]] != codes[tensor.arcs[:, 1]]).sum(axis=1)
    return tensor.arc_s + TIE * tensor.arc_s.max(initial=0.0) * changes**2


def options_kept(problem: Problem, index: int, distances: list[np.ndarray]) -> np.ndarray:
    """The options of a group that nothing dominates; all but those of operators are left as they are."""
    group = problem.groups[index]
    if group.key[0] != "node" or len(group.options) < 2:
        return np.arange(len(group.options))
    better = dominates(problem, index, distances)
    left = np.ones(len(group.options), dtype=bool)
    for option in range(len(group.options)):
        left[option] = not better[left, option].any()
    return np.flatnonzero(left)


def dominates(problem: Problem, index: int, distances: list[np.ndarray]) -> np.ndarray:
    """[s', s]: whether s' makes s needless; on the diagonal it never does."""
    group = problem.groups[index]
    spent = group.time_s[:, None] + np.zeros(len(group.options))[None, :]
    leaner = group.kept_bytes[:, None] <= group.kept_bytes[None, :]
    leaner &= group.state_bytes[:, None] <= group.state_bytes[None, :]
    for tensor, distance in zip(problem.tensors, distances, strict=True):
        for taker, taken in tensor.sinks:
            if taker == index:
                spent = spent + distance[taken[None, :], taken[:, None]]
        if tensor.source == index:
            spent = spent + distance[tensor.given[:, None], tensor.given[None, :]]
        leaner &= keeps_no_more(tensor, index)
    found = leaner & (spent <= group.time_s[None, :] * (1 + SAME))
    np.fill_diagonal(found, False)
    return found


def keeps_no_more(tensor: Tensor, index: int) -> np.ndarray | bool:
    """[s', s]: whether s' of a group keeps no byte of a tensor that s doesn't."""
    mine = [places for keeper, places in tensor.keepers if keeper == index]
    if not mine:
        return True
    alone = len(tensor.keepers) == 1
    fewer = np.ones((len(mine[0]),) * 2, dtype=bool)
    for places in mine:
        same = (places[:, None] == places[None, :]) | (places[:, None] < 0)
        size = np.where(places < 0, 0.0, tensor.kept_bytes[places])
        fewer &= same | (alone & (size[:, None] <= size[None, :]))
    return fewer


def needed_arcs(tensor: Tensor, distance: np.ndarray) -> np.ndarray:
    """Whether each arc is the least way from its start to its end, begins where a tensor may come, and leads on."""
    if not len(tensor.arcs):
        return np.ones(0, dtype=bool)
    source, target = tensor.arcs.T
    taken = np.unique(np.concatenate([places for _, places in tensor.sinks]))
    reached = np.isfinite(distance[np.unique(tensor.given)]).any(axis=0)
    leads = np.isfinite(distance[:, taken]).any(axis=1)
    least = tied(tensor) <= distance[source, target] * (1 + SAME)
    found: np.ndarray = least & reached[source] & leads[target]
    return found
