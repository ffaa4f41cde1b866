"""What all gradient compressions have in common: the messages of a rank, and the compute around them."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplan.cost.prices import Prices
from autoplan.ir.buckets import Compression
from cost_models.compute import eager_seconds, many_kernels_seconds

Shape = tuple[int, ...]
Message = tuple[str, int]
"""A kind of collective, and the bytes that it is known by: of a gather the result's."""
Sent = tuple[str, int, str]
"""The same with the axes that it goes over."""


@dataclass(frozen=True)
class CompressedCost(ABC):
    """The gradients of a stage that go compressed.

    kinds     by the axes of their group how many there are of each local shape
    how       they are compressed
    itemsize  bytes of an element of a gradient as it is stored
    """

    kinds: Mapping[str, Mapping[Shape, int]]
    how: Compression
    itemsize: int

    @abstractmethod
    def messages(self, axes: str, ranks: int) -> tuple[Message, ...]:
        """Over the ranks along these axes, in the order in which they go."""

    @abstractmethod
    def local_s(self, prices: Prices) -> float:
        """Seconds of what a rank computes."""

    def sent(self, axes: str, prices: Prices) -> tuple[Sent, ...]:
        """For a sum over these axes, on the mesh of a price list."""
        ranks = math.prod(prices.mesh.size(axis) for axis in axes.split(","))
        return tuple((kind, size, axes) for kind, size in self.messages(axes, ranks))

    def sums_s(self, prices: Prices) -> float:
        """Seconds of the messages of all groups: they wait for the backward, and for one another."""
        return sum(prices.collective_s(*message) for axes in self.kinds for message in self.sent(axes, prices))

    def streamed_s(self, passes: Iterable[float], elements: float, prices: Prices, near: bool = False) -> float:
        """Seconds of kernels that go so often over as many elements of a gradient, each the first time in a while;
        ``near``: right after the last, which left them in the cache. None is compiled."""
        size, device = self.itemsize * elements, prices.device
        seconds = (many_kernels_seconds(each * size, device) if near else prices.cold_s(each * size) for each in passes)
        return sum(float(eager_seconds(each, device)) for each in seconds)

    @property
    def shapes(self) -> Counter[Shape]:
        """Of all groups."""
        return sum((Counter(shapes) for shapes in self.kinds.values()), Counter())
