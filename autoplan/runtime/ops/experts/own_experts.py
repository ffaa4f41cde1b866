"""A mixture's experts, all of them and a rank's own, and the choice of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.ops.experts import experts
from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over

__all__ = ["experts", "local_experts", "scattered", "top_indices"]


def local_experts(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    activation: str, transposed: bool, complete: bool = False, keep: bool = True, keep_activated: bool = True, *,
    axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """Every token through those of its experts that this rank has: hidden, index, scores R, weights S(0) -> P [.., o].

    Tokens whose experts are elsewhere add nothing, so the ranks' results sum up to the whole.
    """
    rank, _ = index_over(axes)
    given = (first, down, biases, activation, transposed, False, keep, keep_activated)
    return experts(hidden, index - rank * down.shape[0], scores, *given)


def top_indices(x: Tensor, k: int, dim: int, largest: bool = True) -> Tensor:
    """Where the k greatest (or least) along a dim stand, the greatest first."""
    with torch.no_grad():
        return x.topk(k, dim, largest).indices


def scattered(index: Tensor, source: Tensor, dim: int, size: int) -> Tensor:
    """Sums of the source's entries that have the same index along a dim, which has ``size`` entries afterwards."""
    shape = (*source.shape[:dim], size, *source.shape[dim + 1 :])
    return source.new_zeros(shape).scatter_add(dim, index, source)
