"""Each kind of compression by its name."""

from collections.abc import Sequence

from torch.distributed import ProcessGroup

from autoplan.ir.buckets import Compression
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
    return {"int8": QuantisedSums, "topk": TopKSums}[how.kind](held, group, how)
