"""What compression keeps of gradients, taken up from a checkpoint of any plan, and what is then told.

Errors are there as the ranks' sums, in the parameters' shapes. PowerSGD's factors are there for each box of a
parameter that a rank had: a plan that has the same boxes, and factors of the same rank, goes on with them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from autoplan.runtime.checkpoint.keys import Snapshot
from autoplan.runtime.elastic.stderr_messages import note
from autoplan.runtime.parallel.compression.compressor import ERROR
from autoplan.runtime.parallel.compression.program_sums import goes_compressed


def settle_factors(snapshot: Snapshot, read: Mapping[str, Tensor], saved: Mapping[str, object], source: Path) -> None:
    """Draws the factors anew that weren't read. The first rank tells where that is so of a checkpoint with others, and
    where errors are dropped.

    read   what was, by key
    saved  all that the checkpoint holds
    """
    lacking, spec = [key for key in snapshot.factors if key not in read], snapshot.spec
    snapshot.draw(lacking)
    there = {key.split("/", 1)[1] for key in saved if key.startswith(f"{ERROR}/")}
    dropped = [p.name for p in spec.lowered.parameters if p.name in there and not goes_compressed(spec, p)]
    if dist.get_rank() == 0 and dropped:
        said = f"{len(dropped)} gradients, {dropped[0]}'s among them, is dropped"
        note(f"{source}: what its compression left out of {said}: the plan sums them whole")
    how = spec.parallelism.compressed
    if dist.get_rank() == 0 and there and lacking and how:
        said = f"it has no factors of rank {how.rank} for {len(lacking)} parameters as they lie here"
        note(f"{source}: {said}: they are drawn anew, and what was left out of gradients goes on")
