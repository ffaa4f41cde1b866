"""How gradients are joined into buckets, each summed by one all-reduce, and which go as two factors of low rank in
their place: what a program does and what its price assumes.

A bucket's all-reduce begins when the backward has given all of its gradients, and runs beside the rest of the backward
(Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2). PowerSGD takes
a gradient [n, ...] as a matrix [n, m], as torch's ``powerSGD_hook`` does (Vogels, Karimireddy and Jaggi 2019).
"""

import math
from collections.abc import Sequence

MOST_BYTES = 25 * 2**20
"""DistributedDataParallel's bucket_cap_mb, at which links of several nodes are busy (Li et al. 2020, section 5.2)."""
LEAST_BYTES = 2**20
"""Below this an all-reduce takes its start-up's time, whatever is in it."""
SHARES = 8
"""Where that gives buckets of these sizes, one is an eighth of all gradients: an eighth then waits for the backward."""
LEAST_GAIN = 2
"""Times that factors have to be smaller than the matrix; of torch's hook ``min_compression_rate``, 2 as well."""


def bucket_bytes(total: float) -> float:
    """The size of a bucket where there are so many bytes of gradients: from 1 to 25 MiB."""
    return min(max(total / SHARES, LEAST_BYTES), MOST_BYTES)


def cut(sizes: Sequence[int]) -> list[range]:
    """Consecutive gradients of these bytes as buckets: each is closed by the one that fills it."""
    limit, found, first, filled = bucket_bytes(sum(sizes)), [], 0, 0
    for place, size in enumerate(sizes):
        filled += size
        if filled >= limit:
            found.append(range(first, place + 1))
            first, filled = place + 1, 0
    return [*found, range(first, len(sizes))] if first < len(sizes) else found


def matrix_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """[n, m] of a shape of at least one dim."""
    return shape[0], math.prod(shape[1:])


def is_factored(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a gradient of this local shape goes as factors [n, rank] and [m, rank]; else it is summed whole."""
    if rank == 0 or len(shape) < 2:
        return False
    rows, columns = matrix_of(shape)
    return LEAST_GAIN * rank * (rows + columns) < rows * columns
