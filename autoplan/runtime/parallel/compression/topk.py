"""Top-k: each rank sends the elements of its gradients that are largest, and adds the others to the next step's.

Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with Memory", algorithm 1; Lin et al. 2018, "Deep Gradient
Compression", without what that has beside (momentum correction, local clipping, warm-up). Of each parameter k elements,
values and places, go by one all-gather: ranks choose others, so that there is no sum to be had on the way. All then add
them up in the order of ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.ir.buckets import INDEX_BYTES, Compression
from autoplan.runtime.collectives.raw import gather_whole
from autoplan.runtime.parallel.compression.compressor import Compressor
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class TopKSums(Compressor):
    """Of one group, on one rank."""

    def __init__(self, held: Sequence[ShardedParameter], group: ProcessGroup, how: Compression) -> None:
        super().__init__(held, group)
        device = self.held[0].parameter.device
        self.sizes = [h.values.numel() for h in self.held]
        self.counts = [how.kept(size) for size in self.sizes]
        begins = torch.tensor([sum(self.sizes[:n]) for n in range(len(self.sizes))])
        self.begins = begins.repeat_interleave(torch.tensor(self.counts)).to(device)
        kept = sum(self.counts)
        self.dtype = self.held[0].values.dtype
        self.parts = [kept * self.dtype.itemsize, kept * INDEX_BYTES, len(self.sizes)]

    @torch.no_grad()
    def sum_up(self) -> None:
        had = [h.parameter.grad is not None for h in self.held]
        values, places = [], []
        for held, error, count in zip(self.held, self.errors, self.counts, strict=True):
            if held.parameter.grad is not None:
                error.add_(held.parameter.grad)
                held.parameter.grad = None  # its memory is that of what comes in its place
            flat = error.view(-1)
            places.append(flat.abs().topk(count, sorted=False).indices)
            values.append(flat[places[-1]])
            flat[places[-1]] = 0.0
        sent, at, whose = self.gathered(torch.cat(values), torch.cat(places), had).split(self.parts, 1)
        some = had if all(had) else whose.amax(0).tolist()  # read where it matters: a device stops for it
        whole = values[0].new_zeros(sum(self.sizes))
        for one, where in zip(sent, at, strict=True):
            found = self.begins + where.clone().view(torch.int32)
            whole.index_add_(0, found, one.clone().view(self.dtype))
        for n, (held, flat) in enumerate(zip(self.held, whole.split(self.sizes), strict=True)):
            if some[n]:
                held.parameter.grad = flat.view(held.parameter.shape)
            else:
                self.errors[n].view(-1)[places[n]] = values[n]

    def gathered(self, values: Tensor, places: Tensor, had: Sequence[bool]) -> Tensor:
        """[ranks, bytes]: the values, their places, and which gradients a rank had."""
        parts = (values, places.to(torch.int32), torch.tensor(had, dtype=torch.uint8, device=values.device))
        mine = torch.cat([part.contiguous().view(torch.uint8) for part in parts])
        return gather_whole(mine, self.group)
