"""How gradients go: in buckets that an all-reduce sums, compressed, or to a parameter server.

``cut`` joins them into buckets of the size that ``bucket_bytes`` says. Program and price both read this module.

A bucket's all-reduce begins when the backward has given all of its gradients, and runs beside the rest of the backward
(Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2). PowerSGD takes
a gradient [n, ...] as a matrix [n, m], as torch's ``powerSGD_hook`` does (Vogels, Karimireddy and Jaggi 2019).

A bucket is summed by a ring (``dist.all_reduce`` of gloo is one), up and down a binomial tree, or over two levels: in a
node a reduce-scatter, between nodes an all-reduce of each rank's share, in the node an all-gather (Thakur, Rabenseifner
and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", for when which is quickest). ``SumRule``
says which, by the bucket's bytes.

Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI): a server keeps a shard of the
weights and their optimizer state, workers push gradients to it and pull weights. Servers here are workers, too. A shard
is a set of whole parameters, given out longest first, each to the server that has least (Graham 1969, "Bounds on
Multiprocessing Timing Anomalies"): the fullest of k has at most 4/3 - 1/(3k) of what any way of giving them out leaves
it, and no way leaves it less than an even share, or than the largest parameter.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.ir.mesh import EXPERT, Mesh

MOST_BYTES = 25 * 2**20
"""DistributedDataParallel's bucket_cap_mb, at which links of several nodes are busy (Li et al. 2020, section 5.2)."""
LEAST_BYTES = 2**20
"""Below this an all-reduce takes its start-up's time, whatever is in it."""
SHARES = 8
"""Where that gives buckets of these sizes, one is an eighth of all gradients: an eighth then waits for the backward."""
LEAST_GAIN = 2
"""Times that factors have to be smaller than the matrix; of torch's hook ``min_compression_rate``, 2 as well."""
LOW_RANK = 4
"""Of PowerSGD where none is asked for, as its authors take it for language models."""
RATE = 0.01
"""Of top-k where none is asked for: with values and places, a fiftieth of the gradients' bytes from each rank."""
WARM_UP = 100
"""Steps of plain Adam before 1-bit Adam where no number is given; its authors take 15 to 25% of a training."""
ONE_BIT = ("1bit", "1bit-lamb")
"""Kinds by which a momentum goes in place of gradients, under a frozen variance."""
ONE_BYTE = ("int8", "fp8")
"""Kinds by which each element is rounded to a byte; nothing of that is kept."""
BLOCK = 256
"""Elements that have one scale where gradients go in few bits."""
SCALE_BYTES = 4
"""Of its float32."""
LATE = 1
"""Updates by which workers may be behind before servers with backup workers wait for them."""
RULED_BYTES = (*(2**power for power in range(10, 25)), MOST_BYTES)
"""Sizes of buckets at which a rule may change from one all-reduce to another."""
INDEX_BYTES = 4
"""Of the int32 that says where an element lies in its gradient."""


@dataclass(frozen=True)
class Compression:
    """How gradients over the data axis are compressed (``runtime.parallel.compression``).

    kind  "powersgd", "int8", "fp8", "topk", "1bit" or "1bit-lamb"
    rank  of PowerSGD's factors, else 0
    rate  of top-k the share of a gradient's elements that a rank sends, else 0
    within  data-parallel ranks that lie together, as a node's, which sum gradients whole; what is compressed goes
          between such groups. 1: between all ranks
    """

    kind: str
    rank: int = 0
    rate: float = 0.0
    within: int = 1

    @property
    def linear(self) -> bool:
        """Whether the ranks' compression together is that of the sum of their gradients."""
        return self.kind == "powersgd"

    @property
    def one_bit(self) -> bool:
        """Whether a momentum goes in one bit an element: 1-bit Adam's or 1-bit LAMB's."""
        return self.kind in ONE_BIT

    @property
    def feeds_back(self) -> bool:
        """Whether what is left out is added to the next step's gradients."""
        return self.kind not in ONE_BYTE

    @property
    def block_bytes(self) -> int:
        """Of BLOCK elements that go in few bits, with their scale."""
        return (BLOCK if self.kind in ONE_BYTE else BLOCK // 8) + SCALE_BYTES

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a gradient of this local shape is compressed: a matrix, of PowerSGD one that it gains by."""
        return is_factored(shape, self.rank) if self.linear else len(shape) > 1

    def warm_up(self, steps: int | None) -> int:
        """Steps with whole gradients before it begins; ``steps``: as many as are asked for."""
        return steps if steps is not None else WARM_UP * self.one_bit

    def kept(self, elements: int) -> int:
        """Of so many elements those that top-k sends."""
        return math.ceil(self.rate * elements)


def compression(
    kind: str | None, rank: int | None, rate: float | None, within: int | None = None
) -> Compression | None:
    """What is asked for, with what is taken where a rank or a rate isn't."""
    if kind is None:
        return None
    low_rank, share = (rank or LOW_RANK) * (kind == "powersgd"), (rate or RATE) * (kind == "topk")
    return Compression(kind, low_rank, share, within or 1)


def two_levels(axes: Sequence[str], within: int, data: int, experts: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the axes over which gradients are summed whole, those over which they go compressed) of a sum over ``axes``.

    within   data-parallel ranks that lie together
    data     the size of the mesh's axis ``dp``
    experts  that of ``ep``, which lies inside of it: ranks along it that lie together have different experts, whose
             gradients are none of one sum. Where all that lie together have, nothing is summed whole: ()
    """
    near = within // experts
    if near == 1:
        return tuple(axis for axis in axes if axis != "dp"), ("dp",)
    return tuple(f"dp.inner{near}" if axis == "dp" else axis for axis in axes), (f"dp.outer{data // near}",)


@dataclass(frozen=True)
class SumRule:
    """Which all-reduce sums gradients, by a bucket's bytes; as text ``tree<64KiB<hierarchical``.

    algorithms  for smaller buckets first, by the names of ``option_values.ALL_REDUCES``
    sizes       from which on the next one is taken, one less
    """

    algorithms: tuple[str, ...]
    sizes: tuple[int, ...] = ()

    @staticmethod
    def read(text: str) -> "SumRule":
        parts = text.split("<")
        return SumRule(tuple(parts[::2]), tuple(map(bytes_of, parts[1::2])))

    def __str__(self) -> str:
        beside = (*(f"<{size_text(size)}<" for size in self.sizes), "")
        return "".join(name + border for name, border in zip(self.algorithms, beside, strict=True))

    def of(self, total: float) -> str:
        """For gradients of so many bytes that are summed over one group: by the size of their buckets."""
        bucket = min(total, bucket_bytes(total))
        return self.algorithms[sum(bucket >= size for size in self.sizes)]


def by_size(seconds: Mapping[str, Callable[[int], float]]) -> SumRule:
    """The quickest at each size, of all-reduces whose seconds are known for a bucket's bytes; of those that take as
    long the first."""
    quickest = [min(seconds, key=lambda name: seconds[name](size)) for size in RULED_BYTES]
    changes = [place for place in range(1, len(quickest)) if quickest[place] != quickest[place - 1]]
    return SumRule(tuple(quickest[place] for place in (0, *changes)), tuple(RULED_BYTES[place] for place in changes))


def bytes_of(text: str) -> int:
    """Of "64KiB"."""
    match = re.fullmatch(r"(\d+)([KM])iB", text)
    assert match is not None, f"{text} is no size"
    return int(match[1]) * 2 ** {"K": 10, "M": 20}[match[2]]


def size_text(size: int) -> str:
    """Of whole KiB."""
    return f"{size >> 20}MiB" if size % 2**20 == 0 else f"{size >> 10}KiB"


def sum_levels(axes: Sequence[str], mesh: Mesh, node: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """(the axes within a node, those between nodes) of a sum over ``axes``, for nodes of so many devices; None where it
    hasn't two levels: all of a group are in one node, or one in each, or groups differ."""
    data, stride = mesh.size("dp"), mesh.axis("dp").stride if "dp" in mesh else 0
    if "dp" not in axes or not stride or not node or node % stride:
        return None
    near, experts = node // stride, mesh.size(EXPERT)
    if data % near or data == near:
        return None
    inner, outer = two_levels(axes, near * experts, data, experts)
    return (inner, outer) if math.prod(map(mesh.size, inner)) > 1 else None


def blocks(elements: int) -> int:
    """That a gradient of so many elements is cut into, the last one filled up."""
    return -(-elements // BLOCK)


def exchanged_blocks(total: int, ranks: int) -> int:
    """Of all gradients together, so that each rank adds up as many."""
    return -(-total // ranks) * ranks


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


def server_ranks(servers: int, ranks: int) -> tuple[int, ...]:
    """The ranks, of so many along the data axis, on which servers are: apart, so that nodes have as many each."""
    return tuple(number * ranks // servers for number in range(servers))


def shards(sizes: Mapping[str, float], servers: int) -> dict[str, int]:
    """The number of the server that has each parameter, by name; the same for whatever order the names come in."""
    held = [0.0] * servers
    found = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = min(range(servers), key=lambda number: held[number])
        found[name] = least
        held[least] += sizes[name]
    return found


def shard_sizes(sizes: Mapping[str, float], servers: int) -> tuple[float, ...]:
    """What each server has, in the unit of ``sizes``."""
    held = [0.0] * servers
    for name, number in shards(sizes, servers).items():
        held[number] += sizes[name]
    return tuple(held)
