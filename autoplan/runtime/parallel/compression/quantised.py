"""Gradients in few bits: each block of a gradient has a scale of its own, and is added up in full precision.

An all-reduce of what is in few bits would round, or overflow, with each addition. In its place, as ZeRO++ does for its
reduce-scatter (Wang et al. 2023, "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training",
section 3.3, qgZ; scales of blocks as in QSDP, Markov et al. 2023),

    all-to-all   each rank sends each other one its share of the blocks, in few bits
    sum          of what came, and of its own, in the gradients' dtype, in the order of ranks
    all-gather   of the sums, in few bits again

so that an element is rounded twice, however many ranks there are. Blocks are of one parameter alone: which rank adds
one up changes nothing. Nothing of the rounding to int8 is kept, as there, nor to fp8 (e4m3, as FP8-LM sums gradients,
Peng et al. 2023, whose scale is of a whole gradient); their rule is one process's that rounds each replica's gradient
and their sum. Behind its sums a rank gathers which gradients it had.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.ir.buckets import BLOCK, Compression, blocks, exchanged_blocks
from autoplan.runtime.collectives.raw import gather_whole
from autoplan.runtime.parallel.compression.block_codes import INT8, BlockCode
from autoplan.runtime.parallel.compression.compressor import Compressor
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class QuantisedSums(Compressor):
    """Of one group, on one rank. ``how``: what is sent, and whether errors are kept, by senders and by who adds up."""

    def __init__(
        self, held: Sequence[ShardedParameter], group: ProcessGroup, how: Compression, code: BlockCode = INT8
    ) -> None:
        super().__init__(held, group, how.feeds_back)
        self.missing = False
        self.code, self.ranks, like = code, group.size(), self.held[0].values
        self.dtype, device = like.dtype, self.held[0].parameter.device
        sizes = [h.values.numel() for h in self.held]
        counts = [blocks(size) for size in sizes]
        total = exchanged_blocks(sum(counts), self.ranks)
        self.share = total // self.ranks
        self.sent = torch.zeros(total, how.block_bytes, dtype=torch.uint8, device=device)
        self.elements = torch.zeros(total, 1, dtype=torch.int32, device=device)
        self.places = [slice(sum(counts[:n]), sum(counts[: n + 1])) for n in range(len(counts))]
        for place, size in zip(self.places, sizes, strict=True):
            left = size - BLOCK * torch.arange(place.stop - place.start, device=device)
            self.elements[place, 0] = left.clamp(max=BLOCK).to(torch.int32)
        mine = slice(self.share * group.rank(), self.share * (group.rank() + 1))
        self.mine, self.added = self.elements[mine], torch.zeros(self.share, BLOCK, dtype=self.dtype, device=device)

    def taken(self, place: int) -> Tensor | None:
        """What is sent of a parameter, in its shape; None where this rank has no gradient of it."""
        return self.held[place].parameter.grad

    def given(self, place: int, whole: Tensor) -> Tensor:
        """The gradient that comes of the sum of all ranks', in the parameter's shape."""
        return whole

    @torch.no_grad()
    def sum_up(self) -> None:
        missing = {n for n, h in enumerate(self.held) if h.parameter.grad is None}
        self.missing = bool(missing)
        before = [error.clone() for error in self.errors] if missing else self.errors
        for place in range(len(self.held)):
            self.encode(place)
            self.held[place].parameter.grad = None  # its memory is that of what comes in its place
        self.exchange()
        had = [float(place not in missing) for place in range(len(self.held))]
        mine = torch.cat([self.summed().flatten(), self.sent.new_tensor(had)])
        gathered = gather_whole(mine, self.group)
        some = gathered[:, -len(had) :].amax(0).tolist() if missing else had  # read where it matters
        self.sent.view(self.ranks, -1).copy_(gathered[:, : -len(had)])
        del gathered, mine  # before gradients are there
        for n, (rows, held) in enumerate(zip(self.places, self.held, strict=True)):
            if some[n]:
                flat = self.code.decode(self.sent[rows], self.elements[rows], self.dtype)
                held.parameter.grad = self.given(n, flat.view(-1)[: held.values.numel()].view(held.parameter.shape))
            elif self.errors:
                self.put_back(n, before[n])

    def encode(self, place: int) -> None:
        """Writes what goes of a parameter, and keeps what that lacks."""
        taken, rows, like = self.taken(place), self.places[place], self.held[place].values
        flat = like.new_zeros(rows.stop - rows.start, BLOCK, device=self.sent.device)
        own = flat.view(-1)[: like.numel()].view(like.shape)
        if taken is not None:
            own.copy_(taken)
        if self.errors:
            own.add_(self.errors[place])
        self.sent[rows] = self.code.encode(flat, self.elements[rows])
        if self.errors:
            flat.sub_(self.code.decode(self.sent[rows], self.elements[rows], self.dtype))
            self.errors[place].copy_(own)

    def put_back(self, place: int, error: Tensor) -> None:
        """Of a parameter that no rank had a gradient of, what this rank had left out before."""
        self.errors[place].copy_(error)

    def exchange(self) -> None:
        """Adds this rank's blocks up, of all ranks."""
        arrived = torch.empty_like(self.sent)
        dist.all_to_all_single(arrived, self.sent, group=self.group)
        self.added.zero_()
        for sent in arrived.view(self.ranks, self.share, -1):
            self.added.add_(self.code.decode(sent, self.mine, self.dtype))

    def summed(self) -> Tensor:
        """The sums as they go to all: [this rank's blocks, bytes]."""
        return self.code.encode(self.added, self.mine)
