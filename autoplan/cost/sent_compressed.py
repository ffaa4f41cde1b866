"""Gradients in few bits, or their largest elements: what is sent of them, computed and kept; and each kind by its name.

Passes are counted off the runtime's kernels (``runtime.parallel.compression``), each of which reads and writes memory.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoplan.cost.compressed_sums import CompressedCost, Message, Sent, Shape
from autoplan.cost.low_rank import LowRankCost, kept_factors
from autoplan.cost.prices import Prices
from autoplan.ir.buckets import BLOCK, INDEX_BYTES, Compression, blocks, exchanged_blocks, shards, two_levels
from autoplan.ir.mesh import EXPERT

ENCODED = (2.0, 2.0, 1.0, 2.0, 2.0, 1.3, 0.5, 0.5)
"""Over a gradient in float32 that becomes bytes: filled up to blocks, its sizes, their largest, divided, rounded,
narrowed, put behind one another, put in place."""
IN_FP8 = (2.0, 2.0, 1.0, 2.0, 1.3, 0.5, 0.5)
"""The same in fp8, whose conversion rounds."""
DECODED = (0.5, 1.3, 2.0)
"""Of bytes that become one again: apart from their scales, widened, times these."""
ADDED = 3.0
FED_BACK = (3.0, 2.0, 3.0, 2.0)
"""What is left out: added to what is sent, decoded for that (its last pass), taken from it, put away."""
BY_MOMENTUM = (2.0, 3.0, 2.0, 2.0, 3.0, 2.0)
"""Of 1-bit Adam: a rank's part of the momentum (scaled; the gradient added), the gradient that it comes to (compared,
masked, taken apart, scaled)."""
UPDATED = (2.0, 2.0, 2.0, 2.0)
"""What its update reads and writes beside a fused one's: the variance divided, its root, eps; weights decayed."""
LAMB_UPDATED = (2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 1.0)
"""Of 1-bit LAMB's beside LAMB's: the variance copied, grown and put back; the fresh one, by two kernels; the update
without its decay, and both's norms; two deviations of three kernels; their quotient, and its largest."""
CHOSEN = (3.0, 2.0, 6.0, 1.0)
"""What was left out is added; sizes; the k largest, by a radix selection, which reads them for each of some digits;
zeros for what comes."""

LAID_OUT, PUT_BACK = (1.0, 2.0), (2.0,)
"""Of gradients that are summed whole first: zeros, a copy in their place; an owner's, put back in theirs."""

GATHERED = 8 + 8 + 8
"""Bytes beside an element's value that top-k has while it adds up what came: where its gradient begins, its place as
it was chosen, and one rank's. Its own value and that rank's stand, too."""


@dataclass(frozen=True)
class QuantisedCost(CompressedCost):
    """In few bits: an all-to-all of each rank's, an all-gather of the sums."""

    def messages(self, axes: str, ranks: int) -> tuple[Message, ...]:
        """Behind its sums a rank gathers a byte for each parameter."""
        shapes = self.kinds[axes].items()
        total = exchanged_blocks(sum(count * blocks(math.prod(shape)) for shape, count in shapes), ranks)
        size, flags = total * self.how.block_bytes, ranks * sum(self.kinds[axes].values())
        return ("all-to-all", size), ("all-gather", size + flags)

    @property
    def encoded(self) -> tuple[float, ...]:
        return IN_FP8 if self.how.kind == "fp8" else ENCODED

    def local_s(self, prices: Prices) -> float:
        updated = LAMB_UPDATED if self.how.kind == "1bit-lamb" else UPDATED
        passes = (*self.encoded, *DECODED, *((*FED_BACK, *BY_MOMENTUM, *updated) if self.how.feeds_back else ()))
        each = sum(
            count * self.streamed_s(passes, math.prod(shape), prices) for shape, count in self.shapes.items()
        )
        return each + sum(self.added_s(axes, prices) for axes in self.kinds)

    def added_s(self, axes: str, prices: Prices) -> float:
        """A rank's share of the blocks, from every rank, and their sums in few bits again."""
        ranks = math.prod(prices.mesh.size(axis) for axis in axes.split(","))
        share = sum(count * math.prod(shape) for shape, count in self.kinds[axes].items()) / ranks
        came_s = ranks * self.streamed_s((*DECODED, ADDED), share, prices)
        return came_s + self.streamed_s((*self.encoded, *(FED_BACK if self.how.feeds_back else ())), share, prices)


@dataclass(frozen=True)
class TopKCost(CompressedCost):
    """The largest elements: an all-gather of values, places and a byte for each parameter."""

    def messages(self, axes: str, ranks: int) -> tuple[Message, ...]:
        kept = sum(count * self.how.kept(math.prod(shape)) for shape, count in self.kinds[axes].items())
        return (("all-gather", ranks * (kept * (self.itemsize + INDEX_BYTES) + sum(self.kinds[axes].values()))),)

    def local_s(self, prices: Prices) -> float:
        shapes = self.shapes.items()
        chosen_s = sum(count * self.streamed_s(CHOSEN, math.prod(shape), prices) for shape, count in shapes)
        came_s = sum(prices.cold_s(ADDED * size) for axes in self.kinds for _, size, _ in self.sent(axes, prices))
        return chosen_s + came_s


@dataclass(frozen=True)
class TwoLevelCost(CompressedCost):
    """Whole within groups of ranks, compressed between their owners (``runtime.parallel.compression.two_levels``).

    All owners of a group send at once, each over its share of the group's links; the fullest one is what is waited for.
    """

    def messages(self, axes: str, ranks: int) -> tuple[Message, ...]:
        raise AssertionError("they go over several axes: ``sent``")

    def sent(self, axes: str, prices: Prices) -> tuple[Sent, ...]:
        owned, owners, (within, across) = self.fullest(axes, prices)
        elements = sum(count * (math.prod(shape) + 1) for shape, count in owned.kinds[across].items())
        rows = owners * elements * self.itemsize
        between = owned.sent(across, prices)
        if not within:
            return between
        return ("reduce-scatter", rows, within), *between, ("all-gather", rows, within)

    def local_s(self, prices: Prices) -> float:
        """Gradients are put behind one another, the owner's taken out of what came and put back."""
        found = 0.0
        for axes, shapes in self.kinds.items():
            owned, _, (within, across) = self.fullest(axes, prices)
            whole, part = elements_of(shapes), elements_of(owned.kinds[across])
            found += owned.local_s(prices)
            if within:
                found += self.streamed_s(LAID_OUT, whole, prices) + self.streamed_s(PUT_BACK, part, prices)
        return found

    def fullest(self, axes: str, prices: Prices) -> tuple[CompressedCost, int, tuple[str, str]]:
        """(what the owner of most elements sends, owners in a group, the axes within groups and between them)."""
        sizes_of = prices.mesh.size("dp"), prices.mesh.size(EXPERT)
        levels = two_levels(axes.split(","), self.how.within, *sizes_of)
        within, across = (",".join(names) for names in levels)
        owners = math.prod(prices.mesh.size(axis) for axis in levels[0])
        shapes = dict(enumerate(sorted(Counter(self.kinds[axes]).elements())))
        sizes = {f"{number:09}": float(math.prod(shape)) for number, shape in shapes.items()}
        given, held = shards(sizes, owners), [0.0] * owners
        for name, owner in given.items():
            held[owner] += sizes[name]
        most = held.index(max(held))
        mine = Counter(shapes[int(name)] for name, owner in given.items() if owner == most)
        return compressed_cost({across: mine}, replace(self.how, within=1), self.itemsize), owners, (within, across)


def elements_of(shapes: Mapping[Shape, int]) -> int:
    return sum(count * math.prod(shape) for shape, count in shapes.items())


def compressed_cost(kinds: Mapping[str, Mapping[Shape, int]], how: Compression, itemsize: int) -> CompressedCost:
    """Of gradients of these shapes by the axes of their group."""
    if how.within > 1:
        return TwoLevelCost(kinds, how, itemsize)
    kind = {"powersgd": LowRankCost, "topk": TopKCost}.get(how.kind, QuantisedCost)
    return kind(kinds, how, itemsize)


def together(costs: Iterable[CompressedCost]) -> CompressedCost:
    """Of a rank's stages, which send as one."""
    several = list(costs)
    kinds: dict[str, Counter[Shape]] = {}
    for each in several:
        for axes, shapes in each.kinds.items():
            kinds.setdefault(axes, Counter()).update(shapes)
    return compressed_cost(kinds, several[0].how, several[0].itemsize)


def kept_bytes(shape: Shape, how: Compression, itemsize: int, ranks: int) -> float:
    """Bytes that stay on a rank of a gradient of this shape: what was left out of it, and what messages are put
    together in. Of those who add up, theirs, too; of owners in a group, ``how.within`` ranks, each one's share."""
    elements = math.prod(shape)
    if how.kind == "1bit-lamb":  # the fresh variance
        return itemsize * elements + kept_bytes(shape, replace(how, kind="1bit"), itemsize, ranks)
    if how.within > 1:
        return kept_bytes(shape, replace(how, within=1), itemsize, ranks // how.within) / how.within
    left = itemsize * elements * how.feeds_back
    if how.kind == "powersgd":
        return left + kept_factors(shape, how.rank, itemsize)
    if how.kind == "topk":
        return left + how.kept(elements) * (ranks * (itemsize + INDEX_BYTES) + 2 * itemsize + GATHERED)
    sums = (1 + how.feeds_back) * itemsize * BLOCK / ranks
    return left + blocks(elements) * (how.block_bytes + INDEX_BYTES + sums)
