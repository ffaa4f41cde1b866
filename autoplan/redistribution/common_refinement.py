"""The common refinement of two shapes: [4, 6] and [24] are both merges of [4, 6]; [b, s, heads * d] and
[b * s, heads, d] of [b, s, heads, d].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul


@dataclass(frozen=True)
class Piece:
    """A refined dim, by its number, as a part of a dim; ``size`` is the dim's share of it where it is opaque."""

    number: int
    size: int


@dataclass(frozen=True)
class Refinement:
    """The coarsest shape of which two shapes are merges.

    shape          its sizes
    before, after  for each dim of either side the refined dims that it merges, outermost first; none for a dim of size
                   one that the other side lacks
    opaque         numbers of refined dims that stand across dims of a side: [2, 3] -> [3, 2] have no cut in common, so
                   [6] is in both dims of both. They can't be split
    """

    shape: tuple[int, ...]
    before: tuple[tuple[Piece, ...], ...]
    after: tuple[tuple[Piece, ...], ...]
    opaque: frozenset[int] = frozenset()


def refine(before: Sequence[int], after: Sequence[int]) -> Refinement:
    """The common refinement of two shapes of as many elements.

    With cuts P_0 = 1, P_1, … the products of the leading sizes before, and Q_j those after, c is a cut of both where
    P_i | c | P_i+1 and Q_j | c | Q_j+1 for some i and j. Of these the outermost and the innermost of each (i, j) are
    taken, lcm(P_i, Q_j) and gcd(P_i+1, Q_j+1): where the shapes nest, they are the P and the Q. Any two of them divide
    one another.
    """
    before, after = tuple(before), tuple(after)
    if math.prod(before) != math.prod(after):
        raise ValueError(
            f"{list(before)} can't be reshaped to {list(after)}: "
            f"it has {math.prod(before)} elements, not {math.prod(after)}"
        )
    if math.prod(before) == 0:
        return _refine_empty(before, after)
    left, right = cuts(before), cuts(after)
    edges = _common_cuts(sorted(set(left)), sorted(set(right)))
    # A refined dim by its place: (start, 0, n) is the n-th dim of size one there, (start, 1, 0) what starts there.
    spans = {(start, 1, 0): stop for start, stop in pairwise(edges)}
    spans |= {place: place[0] for place in set(_ones(before)) & set(_ones(after))}
    order = sorted(spans)
    merged, split = (_pieces(shape, order, spans) for shape in (before, after))
    return Refinement(tuple(spans[p] // p[0] for p in order), merged, split, _shared(merged) | _shared(split))


def cuts(shape: Sequence[int]) -> list[int]:
    """1 and the products of the leading sizes: where each dim starts and stops, in parts of the whole."""
    return list(accumulate(shape, mul, initial=1))


def _common_cuts(left: Sequence[int], right: Sequence[int]) -> list[int]:
    found = {1}
    for start, stop in pairwise(left):
        for other_start, other_stop in pairwise(right):
            outermost, innermost = math.lcm(start, other_start), math.gcd(stop, other_stop)
            if innermost % outermost == 0:
                found |= {outermost, innermost}
    return sorted(found)


def _ones(shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """The place of each dim of size one: where it is, and how many of its kind stand there before it."""
    starts = [start for start, size in zip(cuts(shape), shape, strict=False) if size == 1]
    return [(start, 0, starts[:n].count(start)) for n, start in enumerate(starts)]


def _pieces(
    shape: Sequence[int], order: Sequence[tuple[int, int, int]], spans: dict[tuple[int, int, int], int]
) -> tuple[tuple[Piece, ...], ...]:
    """For each dim the refined dims in it, each with the dim's share."""
    ones = iter(_ones(shape))
    dims: list[tuple[Piece, ...]] = []
    for start, stop in pairwise(cuts(shape)):
        if start == stop:
            place = next(ones)
            dims.append((Piece(order.index(place), 1),) if place in spans else ())
            continue
        overlaps = [(n, max(start, p[0]), min(stop, spans[p])) for n, p in enumerate(order) if spans[p] > p[0]]
        dims.append(tuple(Piece(n, last // first) for n, first, last in overlaps if first < last))
    return tuple(dims)


def _shared(side: Sequence[Sequence[Piece]]) -> frozenset[int]:
    """Refined dims that stand in several dims."""
    numbers = [piece.number for pieces in side for piece in pieces]
    return frozenset(number for number in numbers if numbers.count(number) > 1)


def _refine_empty(before: tuple[int, ...], after: tuple[int, ...]) -> Refinement:
    """Of shapes without elements, whose products say nothing: the leading and the trailing dims that are the same stay
    what they are, the ones between are one opaque dim of size 0."""
    if before == after:
        same = tuple((Piece(number, size),) for number, size in enumerate(before))
        return Refinement(before, same, same)
    head = _same_ahead(before, after)
    tail = _same_ahead(before[:head:-1], after[:head:-1])

    def pieces(shape: tuple[int, ...]) -> tuple[tuple[Piece, ...], ...]:
        between = len(shape) - tail - head
        numbers = [*range(head), *[head] * between, *range(head + 1, head + 1 + tail)]
        return tuple((Piece(number, size),) for number, size in zip(numbers, shape, strict=True))

    shape = (*before[:head], 0, *before[len(before) - tail :])
    return Refinement(shape, pieces(before), pieces(after), frozenset([head]))


def _same_ahead(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading sizes are the same, up to the first 0."""
    count = 0
    for here, there in zip(left, right, strict=False):
        if here != there or not here:
            break
        count += 1
    return count
