"""Sums over the batch made whole over its ranks, and made summands again."""

from collections.abc import Sequence

from torch import Tensor

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.typed import all_reduce, invariant_to_partial


def batch_total(x: Tensor, *, axes: Sequence[MeshAxis] = ()) -> Tensor:
    """P -> I: the sum over the axes, each rank's gradient whole."""
    for axis in axes:
        x = all_reduce(x, axis)
    return x


def batch_count(x: Tensor, *, axes: Sequence[MeshAxis] = ()) -> Tensor:
    """P -> R, of what carries no gradient."""
    return batch_total(x.detach(), axes=axes)


def batch_part(x: Tensor, *, axes: Sequence[MeshAxis] = ()) -> Tensor:
    """I -> P: the first rank of the axes holds x, the others zeros."""
    for axis in axes:
        x = invariant_to_partial(x, axis)
    return x
