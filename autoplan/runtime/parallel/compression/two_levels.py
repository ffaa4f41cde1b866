"""Gradients summed whole where links are fast, and compressed where they are slow: within a node, and between nodes.

Each parameter has an owner in every group of ranks that lie together, the same one in each (``ir.buckets.shards``, by
size). A step of one rank,

    reduce-scatter  within the group, in the gradients' dtype: an owner gets the group's sums of what it owns
    compressed sum  of these between owners of the same, one in each group (``powersgd``, ``quantised``, ``topk``,
                    ``onebit``): a group takes a rank's place there, and has its error at the owner alone
    all-gather      within the group, of what came of it

so that a node sends over the slow link what one rank would, and each of its ranks its share. Rows of the reduce-scatter
are as long as the fullest owner's. Behind an owner's gradients is a count for each of the ranks that had one.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from autoplan.ir.buckets import shards
from autoplan.runtime.collectives.raw import gather_whole, sum_rows
from autoplan.runtime.parallel.compression.compressor import Compressor
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class TwoLevelSums(Compressor):
    """Of one group of ranks, on one of them. ``own``: what compresses the gradients that it owns; None: it owns none.

    within  the ranks that lie together
    of      makes what compresses some of these parameters, between groups
    """

    def __init__(
        self, held: Sequence[ShardedParameter], group: ProcessGroup, within: ProcessGroup,
        of: Callable[[Sequence[ShardedParameter]], Compressor],
    ) -> None:  # fmt: skip
        super().__init__(held, group, feeds_back=False)
        self.within = within
        owners = shards({h.name: h.values.numel() for h in self.held}, within.size())
        self.owned = [[h for h in self.held if owners[h.name] == rank] for rank in range(within.size())]
        self.row = max(len(each) + sum(h.values.numel() for h in each) for each in self.owned)
        mine = self.owned[within.rank()]
        self.own = of(mine) if mine else None

    def follow(self, optimizer: Optimizer) -> None:
        if self.own is not None:
            self.own.follow(optimizer)

    @property
    def left_out(self) -> dict[str, Tensor]:
        return self.own.left_out if self.own is not None else {}

    @property
    def factors(self) -> dict[str, Tensor]:
        return self.own.factors if self.own is not None else {}

    def begin(self, keys: Sequence[str] | None = None) -> None:
        if self.own is not None:
            self.own.begin(keys)

    def add_up(self) -> None:
        if self.own is not None:
            self.own.add_up()

    def share_out(self) -> None:
        if self.own is not None:
            self.own.share_out()

    @torch.no_grad()
    def sum_up(self) -> None:
        mine, missing = self.summed_within()
        owned = self.owned[self.within.rank()]
        give(owned, mine, missing)
        if self.own is not None:
            self.own.sum_up()
        lay(owned, mine)
        for each, row in zip(self.owned, gather_whole(mine, self.within), strict=True):
            give(each, row, missing)

    def summed_within(self) -> tuple[Tensor, bool]:
        """(this owner's row of the group's sums, whether this rank lacks a gradient); gradients are gone from
        parameters then."""
        first = self.held[0]
        rows = first.values.new_zeros(len(self.owned), self.row, device=first.parameter.device)
        missing = [lay(owned, row) for owned, row in zip(self.owned, rows, strict=True)]
        return sum_rows(rows, self.within), any(missing)


def lay(owned: Sequence[ShardedParameter], row: Tensor) -> bool:
    """Moves gradients into an owner's row; whether there are none of some, whose places are zero then."""
    (views, had), missing = parts(row, owned), False
    for place, (held, view) in enumerate(zip(owned, views, strict=True)):
        gradient, held.parameter.grad = held.parameter.grad, None
        had[place] = float(gradient is not None)
        view.zero_() if gradient is None else view.copy_(gradient)
        missing = missing or gradient is None
    return missing


def parts(row: Tensor, owned: Sequence[ShardedParameter]) -> tuple[list[Tensor], Tensor]:
    """(an owner's gradients in its row, the counts behind them)."""
    sizes = [h.values.numel() for h in owned]
    *flat, had, _ = row.split([*sizes, len(owned), len(row) - sum(sizes) - len(owned)])
    return [view.view(h.values.shape) for view, h in zip(flat, owned, strict=True)], had


def give(owned: Sequence[ShardedParameter], row: Tensor, missing: bool) -> None:
    """Gives parameters the gradients of a row, but for those that no rank had.

    missing  whether this rank lacked some: only then are counts read, since a device stops for it
    """
    views, had = parts(row, owned)
    some = had.tolist() if missing else [1] * len(owned)
    for held, view, there in zip(owned, views, some, strict=True):
        held.parameter.grad = view.view(held.parameter.shape) if there else None
