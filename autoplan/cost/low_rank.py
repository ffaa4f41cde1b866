"""What PowerSGD takes on a rank: two sums, the products around them (``runtime.parallel.compression.powersgd``)."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.cost.compressed_sums import CompressedCost, Message, Shape
from autoplan.cost.prices import Prices
from autoplan.ir.buckets import matrix_of
from cost_models.compute import eager_seconds, peak_flops_per_s

FIRST_PASSES, NEXT_PASSES = (3.0, 1.5, 1.2), (1.5, 2.4)
"""Over a gradient, of its five kernels. In the order in which they run: what was left out is added (read twice,
written), then the product M Q; M' P, then P Q' taken from M (read, written); P Q' written. Those of NEXT_PASSES read
what the kernel before them left in the cache, where it fits; between the three others all gradients have their turn. A
thin product reads at two thirds of the pace of a copy: of float32 on an H100 from 1.3 to 1.8 passes for factors of rank
1 to 16, and 8192 or 4096 rows and columns."""
FLOPS = 8.0
"""Of the four products, for each element of the gradient and each of the rank."""
ROUNDS, OPERATORS, COLUMN_PASSES = 3, 13, 6.0
"""Of an orthonormalisation: how often each column is made orthogonal to those before it, by how many operators, views
among them, which read and write it so often. Two rounds of 14 took 0.9 ms for rank 4 on an H100, 1.4 ms for 224
matrices together; three haven't been measured (`make gpu PARTS=kernels` does)."""
DTYPES = {4: "float32", 8: "float64"}


@dataclass(frozen=True)
class LowRankCost(CompressedCost):
    """Factors of low rank, in a gradient's dtype: of all P together one all-reduce, of all Q another."""

    def messages(self, axes: str, ranks: int) -> tuple[Message, ...]:
        """That of P has an element for each parameter, which counts the ranks that had its gradient."""
        sizes, rank = [(matrix_of(shape), count) for shape, count in self.kinds[axes].items()], self.how.rank
        lefts = sum(count * (rows * rank + 1) for (rows, _), count in sizes)
        rights = sum(count * m * rank for (_, m), count in sizes)
        return ("all-reduce", self.itemsize * lefts), ("all-reduce", self.itemsize * rights)

    def local_s(self, prices: Prices) -> float:
        """Seconds of M, M Q, M' P, what is left of M, and the gradient."""
        return sum(count * self.matrix_s(shape, prices) for shape, count in self.shapes.items()) + sum(
            self.orthonormal_s(rows, count, prices) for rows, count in by_rows(self.shapes).items()
        )

    def matrix_s(self, shape: Shape, prices: Prices) -> float:
        """Kernels that wait for memory, factors being thin, or for their products; none is compiled."""
        elements, device = math.prod(shape), prices.device
        rate = peak_flops_per_s(device, DTYPES[self.itemsize]) * device.matmul_efficiency
        near = self.itemsize * elements <= device.cache_bytes
        streamed_s = self.streamed_s(FIRST_PASSES, elements, prices) + self.streamed_s(
            NEXT_PASSES, elements, prices, near
        )
        return max(streamed_s, FLOPS * self.how.rank * elements / rate)

    def orthonormal_s(self, rows: int, count: int, prices: Prices) -> float:
        """Of as many P with so many rows, together: each column is set against those before it."""
        column, operators = self.itemsize * rows * count, ROUNDS * OPERATORS * self.how.rank
        each = (COLUMN_PASSES + self.how.rank) / OPERATORS * column
        return operators * float(eager_seconds(prices.cold_s(each), prices.device))


def by_rows(shapes: Mapping[Shape, int]) -> Counter[int]:
    found = Counter[int]()
    for shape, count in shapes.items():
        found[shape[0]] += count
    return found


def kept_factors(shape: Shape, rank: int, itemsize: int) -> int:
    """Bytes of both factors of a gradient of this shape."""
    return itemsize * rank * sum(matrix_of(shape))
