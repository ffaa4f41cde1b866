"""The cheapest redistributions of one tensor: a tree from the layout it is in to every layout in which it is wanted.

A directed Steiner tree over a handful of layouts, found exactly by dynamic programming over sets of wanted layouts
(Dreyfus and Wagner 1971): best[set][v] is the cheapest tree from v that reaches the set; it splits at v into two
trees, or begins with an arc out of v.
"""

import heapq
from collections.abc import Collection, Mapping

Arc = tuple[int, int]


def cheapest_tree(root: int, wanted: Collection[int], arcs: Mapping[Arc, float]) -> tuple[Arc, ...] | None:
    """The arcs to pay for, in an order in which each begins where another ended; None where a layout isn't reached.

    root    index of the layout the tensor is in
    wanted  indices of the layouts it is wanted in; the root itself costs nothing
    arcs    (from, to) -> price, not negative
    """
    targets = sorted(set(wanted) - {root})
    if not targets:
        return ()
    nodes = sorted({root, *targets, *(end for arc in arcs for end in arc)})
    best = [dict[int, tuple[float, frozenset[Arc]]]() for _ in range(1 << len(targets))]
    for mask in range(1, 1 << len(targets)):
        if mask & (mask - 1) == 0:
            best[mask][targets[mask.bit_length() - 1]] = (0.0, frozenset())
        for node in nodes:
            for part in proper_halves(mask):
                join(best, mask, part, node)
        grow(best[mask], arcs)
    found = best[-1].get(root)
    return None if found is None else in_order(root, found[1])


def proper_halves(mask: int) -> list[int]:
    """The subsets of a set that hold its lowest member, but not all of it."""
    lowest = mask & -mask
    rest, subset, found = mask ^ lowest, (mask ^ lowest) & ((mask ^ lowest) - 1), []
    while rest:
        found.append(subset | lowest)
        if subset == 0:
            break
        subset = (subset - 1) & rest
    return found


def join(best: list[dict[int, tuple[float, frozenset[Arc]]]], mask: int, part: int, node: int) -> None:
    """Two trees that begin at one node, as one."""
    one, other = best[part].get(node), best[mask ^ part].get(node)
    if one is None or other is None:
        return
    price = one[0] + other[0]
    if node not in best[mask] or price < best[mask][node][0]:
        best[mask][node] = (price, one[1] | other[1])


def grow(trees: dict[int, tuple[float, frozenset[Arc]]], arcs: Mapping[Arc, float]) -> None:
    """Lets trees begin earlier, along arcs taken backwards (Dijkstra)."""
    queue = [(price, node) for node, (price, _) in trees.items()]
    heapq.heapify(queue)
    while queue:
        price, node = heapq.heappop(queue)
        if price > trees[node][0]:
            continue
        for (source, target), cost in arcs.items():
            if target == node and (source not in trees or price + cost < trees[source][0]):
                trees[source] = (price + cost, trees[node][1] | {(source, target)})
                heapq.heappush(queue, (price + cost, source))


def in_order(root: int, tree: frozenset[Arc]) -> tuple[Arc, ...]:
    """Arcs in an order in which each begins where one before it ended; one arc into each node."""
    ordered: list[Arc] = []
    reached = {root}
    left = sorted(tree)
    while left:
        arc = next(a for a in left if a[0] in reached)
        left.remove(arc)
        if arc[1] not in reached:
            reached.add(arc[1])
            ordered.append(arc)
    return tuple(ordered)
