"""Gradients in few bits, or their largest elements: what is sent of them, computed and kept; and each kind by its name.

Passes are counted off the runtime's kernels (``runtime.parallel.compression``), each of which reads and writes memory.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplan.cost.compressed_sums import CompressedCost, Message, Shape
from autoplan.cost.low_rank import LowRankCost, kept_factors
from autoplan.cost.prices import Prices
from autoplan.ir.buckets import BLOCK, INDEX_BYTES, Compression, blocks, exchanged_blocks

ENCODED = (2.0, 2.0, 1.0, 2.0, 2.0, 1.3, 0.5, 0.5)
"""Over a gradient in float32 that becomes bytes: filled up to blocks, its sizes, their largest, divided, rounded,
narrowed, put behind one another, put in place."""
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
CHOSEN = (3.0, 2.0, 6.0, 1.0)
"""What was left out is added; sizes; the k largest, by a radix selection, which reads them for each of some digits;
zeros for what comes."""

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

    def local_s(self, prices: Prices) -> float:
        passes = (*ENCODED, *DECODED, *((*FED_BACK, *BY_MOMENTUM, *UPDATED) if self.how.feeds_back else ()))
        each = sum(
            count * self.streamed_s(passes, math.prod(shape), prices) for shape, count in self.shapes.items()
        )
        return each + sum(self.added_s(axes, prices) for axes in self.kinds)

    def added_s(self, axes: str, prices: Prices) -> float:
        """A rank's share of the blocks, from every rank, and their sums in few bits again."""
        ranks = math.prod(prices.mesh.size(axis) for axis in axes.split(","))
        share = sum(count * math.prod(shape) for shape, count in self.kinds[axes].items()) / ranks
        came_s = ranks * self.streamed_s((*DECODED, ADDED), share, prices)
        return came_s + self.streamed_s((*ENCODED, *(FED_BACK if self.how.feeds_back else ())), share, prices)


@dataclass(frozen=True)
class TopKCost(CompressedCost):
    """The largest elements: an all-gather of values, places and a byte for each parameter."""

    def messages(self, axes: str, ranks: int) -> tuple[Message, ...]:
        kept = sum(count * self.how.kept(math.prod(shape)) for shape, count in self.kinds[axes].items())
        return (("all-gather", ranks * (kept * (self.itemsize + INDEX_BYTES) + sum(self.kinds[axes].values()))),)

    def local_s(self, prices: Prices) -> float:
        shapes = self.shapes.items()
        chosen_s = sum(count * self.streamed_s(CHOSEN, math.prod(shape), prices) for shape, count in shapes)
        came_s = sum(prices.cold_s(ADDED * size) for axes in self.kinds for _, size in self.sent(axes, prices))
        return chosen_s + came_s


def compressed_cost(kinds: Mapping[str, Mapping[Shape, int]], how: Compression, itemsize: int) -> CompressedCost:
    """Of gradients of these shapes by the axes of their group."""
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
    together in. Of those who add up, theirs, too."""
    elements = math.prod(shape)
    left = itemsize * elements * how.feeds_back
    if how.kind == "powersgd":
        return left + kept_factors(shape, how.rank, itemsize)
    if how.kind == "topk":
        return left + how.kept(elements) * (ranks * (itemsize + INDEX_BYTES) + 2 * itemsize + GATHERED)
    sums = (1 + how.feeds_back) * itemsize * BLOCK / ranks
    return left + blocks(elements) * (how.block_bytes + INDEX_BYTES + sums)
