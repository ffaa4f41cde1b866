"""What PowerSGD takes on a rank: two sums, the products around them, what it keeps (``runtime.parallel.powersgd``)."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplan.cost.prices import Prices
from autoplan.ir.buckets import matrix_of
from cost_models.compute import eager_seconds, peak_flops_per_s

Shape = tuple[int, ...]
PASSES = (3.0, 1.5, 1.5, 2.4, 1.2)
"""Over a gradient, of its five kernels: what was left out is added (read twice, written); the products M Q and M' P,
which read it; P Q' taken from it (read, written); P Q' written. A thin product reads at two thirds of the pace of a
copy: of float32 on an H100 from 1.3 to 1.8 passes for factors of rank 1 to 16, and 8192 or 4096 rows and columns."""
FLOPS = 8.0
"""Of the four products, for each element of the gradient and each of the rank."""
ROUNDS, OPERATORS, COLUMN_PASSES = 3, 13, 6.0
"""Of an orthonormalisation: how often each column is made orthogonal to those before it, by how many operators, views
among them, which read and write it so often. Two rounds of 14 took 0.9 ms for rank 4 on an H100, 1.4 ms for 224
matrices together; three haven't been measured (`make gpu PARTS=kernels` does)."""
DTYPES = {4: "float32", 8: "float64"}


@dataclass(frozen=True)
class LowRankCost:
    """The gradients of a stage that go as factors.

    kinds     by the axes of their group how many matrices there are of each local shape
    rank      of the factors
    itemsize  bytes of an element of a gradient, an error or a factor
    """

    kinds: Mapping[str, Mapping[Shape, int]]
    rank: int
    itemsize: int

    def sums(self, axes: str) -> tuple[int, int]:
        """Bytes of the two sums over these axes: of all P, with an element for each parameter that counts the ranks
        which had its gradient, and of all Q."""
        sizes = [(matrix_of(shape), count) for shape, count in self.kinds[axes].items()]
        lefts = sum(count * (rows * self.rank + 1) for (rows, _), count in sizes)
        return self.itemsize * lefts, self.itemsize * sum(count * m * self.rank for (_, m), count in sizes)

    def sums_s(self, prices: Prices) -> float:
        """Seconds of these, of all groups: they wait for the backward, and for one another."""
        return sum(prices.collective_s("all-reduce", size, axes) for axes in self.kinds for size in self.sums(axes))

    def local_s(self, prices: Prices) -> float:
        """Seconds of what a rank computes: M, M Q, M' P, what is left of M, and the gradient."""
        every: Counter[Shape] = sum((Counter(shapes) for shapes in self.kinds.values()), Counter())
        return sum(count * self.matrix_s(shape, prices) for shape, count in every.items()) + sum(
            self.orthonormal_s(rows, count, prices) for rows, count in by_rows(every).items()
        )

    def matrix_s(self, shape: Shape, prices: Prices) -> float:
        """Kernels that wait for memory, factors being thin, or for their products; none is compiled."""
        elements, device = math.prod(shape), prices.device
        streamed_s = sum(
            float(eager_seconds(prices.cold_s(passes * self.itemsize * elements), device)) for passes in PASSES
        )
        rate = peak_flops_per_s(device, DTYPES[self.itemsize]) * device.matmul_efficiency
        return max(streamed_s, FLOPS * self.rank * elements / rate)

    def orthonormal_s(self, rows: int, count: int, prices: Prices) -> float:
        """Of as many P with so many rows, together: each column is set against those before it."""
        column, operators = self.itemsize * rows * count, ROUNDS * OPERATORS * self.rank
        each = (COLUMN_PASSES + self.rank) / OPERATORS * column
        return operators * float(eager_seconds(prices.cold_s(each), prices.device))


def by_rows(shapes: Mapping[Shape, int]) -> Counter[int]:
    found = Counter[int]()
    for shape, count in shapes.items():
        found[shape[0]] += count
    return found


def kept_bytes(shapes: Iterable[Shape], rank: int, itemsize: int) -> int:
    """Bytes that stay on a rank of gradients of these shapes: what was left out of each, and its two factors."""
    return itemsize * sum(math.prod(shape) + rank * sum(matrix_of(shape)) for shape in shapes)
