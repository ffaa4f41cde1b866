"""Each kind of compression by its name."""

from collections.abc import Sequence

from torch.distributed import ProcessGroup

from autoplan.ir.buckets import ONE_BYTE, Compression
from autoplan.runtime.parallel.compression.block_codes import FP8, INT8
from autoplan.runtime.parallel.compression.compressor import Compressor
from autoplan.runtime.parallel.compression.onebit import OneBitSums
from autoplan.runtime.parallel.compression.powersgd import LowRankSums
from autoplan.runtime.parallel.compression.quantised import QuantisedSums
from autoplan.runtime.parallel.compression.topk import TopKSums
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


def compressor(how: Compression, held: Sequence[ShardedParameter], group: ProcessGroup, seed: int) -> Compressor:
    """Of these parameters' gradients; ``seed``: of what a kind draws."""
    if how.kind == "powersgd":
        return LowRankSums(held, group, how.rank, seed)
    if how.one_bit:
        return OneBitSums(held, group, how)
    if how.kind in ONE_BYTE:
        return QuantisedSums(held, group, how, FP8 if how.kind == "fp8" else INT8)
    return TopKSums(held, group, how)
