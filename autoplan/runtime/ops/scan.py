"""Running sums and products along a split dim: every rank scans its part, and takes in what the parts before give.

Of each part its total is gathered over the axes, [.., 1, ..] a rank: a scan of the totals is all that crosses. Backward
the totals' gradients are summed onto the rank whose total it is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.collectives.typed import all_gather


def before(total: Tensor, dim: int, axes: Sequence[MeshAxis]) -> tuple[Tensor, int]:
    """Totals of all parts along dim, in the order of the parts, and how many come before this rank's; each rank's
    gradient of them is a summand."""
    index, _ = index_over(axes)
    for axis in reversed(axes):
        total = all_gather(total, dim, axis)
    return total, index


def split_cumsum(x: Tensor, dim: int, dtype: None = None, *, axes: Sequence[MeshAxis]) -> Tensor:
    """x S(dim) -> S(dim)."""
    totals, index = before(x.sum(dim, keepdim=True), dim, axes)
    return x.cumsum(dim) + totals.narrow(dim, 0, index).sum(dim, keepdim=True)


def split_cumprod(x: Tensor, dim: int, dtype: None = None, *, axes: Sequence[MeshAxis]) -> Tensor:
    totals, index = before(x.prod(dim, keepdim=True), dim, axes)
    return x.cumprod(dim) * totals.narrow(dim, 0, index).prod(dim, keepdim=True)


def split_logcumsumexp(x: Tensor, dim: int, *, axes: Sequence[MeshAxis]) -> Tensor:
    totals, index = before(x.logsumexp(dim, keepdim=True), dim, axes)
    return torch.logaddexp(x.logcumsumexp(dim), totals.narrow(dim, 0, index).logsumexp(dim, keepdim=True))


def running_extreme(x: Tensor, dim: int, largest: bool) -> Tensor:
    """Where the greatest (or least) along dim up to each place stands."""
    return (x.detach().cummax(dim) if largest else x.detach().cummin(dim)).indices
