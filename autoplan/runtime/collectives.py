"""What an exported program calls to redistribute a tensor: each forward collective with its own backward.

One function for each change of state on one axis (autoplan.redistribute.STEPS). The backward follows from the states:
the gradient of S(d) is S(d), of R it is P, of I it is I, of P it is R. All are exact adjoints: with A the forward over
the whole group, the gradients of all ranks together are A transposed applied to the gradients of all results.

Every function returns its argument where the axis has one member. ``dim`` is a dim of the tensor, ``axis`` the mesh
axis as this rank sees it. Shapes: n is the axis' size. Results are waited for and contiguous, so no asynchronous
tensor leaks into a program or into a leaf's ``.grad``; ``torch.compile(fullgraph=True)`` takes them whole.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from autoplan.runtime.axes import RankAxis

# The operators below torch.distributed._functional_collectives are private, yet the only collectives that a compiler
# can trace; that module's own functions change names between releases and return tensors still in flight.
_wire = torch.ops._c10d_functional

Primitive = Callable[[Tensor, tuple[int, ...], RankAxis], Tensor]


def _group(axis: RankAxis) -> str:
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    return axis.group.group_name


def _keep(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    return x


def _mask(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    """The first rank's x as it is, zeros on the others."""
    return x if axis.rank == 0 else torch.zeros_like(x)


def _sum(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    return _wire.wait_tensor(_wire.all_reduce(x.contiguous(), "sum", _group(axis)))


def _max(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    return _wire.wait_tensor(_wire.all_reduce(x.contiguous(), "max", _group(axis)))


def _gather(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    stacked = _wire.all_gather_into_tensor(x.contiguous(), axis.size, _group(axis))
    stacked = _wire.wait_tensor(stacked)
    return stacked if dims[0] == 0 else torch.cat(stacked.chunk(axis.size), dims[0])


def _scatter_sum(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    _check(x, dims[0], axis)
    stacked = x if dims[0] == 0 else torch.cat(x.chunk(axis.size, dims[0]))
    return _wire.wait_tensor(_wire.reduce_scatter_tensor(stacked.contiguous(), "sum", axis.size, _group(axis)))


def _slice(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    _check(x, dims[0], axis)
    length = x.shape[dims[0]] // axis.size
    return x.narrow(dims[0], axis.rank * length, length).contiguous()


def _pad(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    """The whole tensor with this rank's part in its place and zeros elsewhere."""
    length = x.shape[dims[0]]
    before, after = axis.rank * length, (axis.size - 1 - axis.rank) * length
    inner = [0] * (2 * (x.ndim - 1 - dims[0]))
    return functional.pad(x, [*inner, before, after])


def _exchange(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    """From whole along dims[1] and split along dims[0] to the reverse: part j goes to rank j."""
    source, target = dims
    _check(x, target, axis)
    parts = torch.stack(x.chunk(axis.size, target))
    ones = [1] * axis.size
    parts = _wire.wait_tensor(_wire.all_to_all_single(parts, ones, ones, _group(axis)))
    return torch.cat(parts.unbind(), source)


def _exchange_back(x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
    return _exchange(x, (dims[1], dims[0]), axis)


def _check(x: Tensor, dim: int, axis: RankAxis) -> None:
    assert x.shape[dim] % axis.size == 0, f"dim {dim} of {tuple(x.shape)} doesn't divide over {axis.name}={axis.size}"


def _pair(forward: Primitive, backward: Primitive) -> type[Function]:
    """The autograd Function of two primitives that are adjoint to one another."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x: Tensor, dims: tuple[int, ...], axis: RankAxis) -> Tensor:
            ctx.dims, ctx.axis = dims, axis
            return forward(x, dims, axis)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
            return backward(gradient, ctx.dims, ctx.axis), None, None

    return Pair


_AllReduce = _pair(_sum, _keep)
_AllReduceToReplicate = _pair(_sum, _sum)
_ToReplicate = _pair(_keep, _sum)
_ToInvariant = _pair(_keep, _mask)
_AllGather = _pair(_gather, _scatter_sum)
_AllGatherInvariant = _pair(_gather, _slice)
_Shard = _pair(_slice, _pad)
_ShardInvariant = _pair(_slice, _gather)
_ReduceScatter = _pair(_scatter_sum, _gather)
_AllToAll = _pair(_exchange, _exchange_back)
_ReplicateToPartial = _pair(_mask, _mask)
_InvariantToPartial = _pair(_mask, _keep)
_ShardToPartial = _pair(_pad, _slice)


def all_reduce(x: Tensor, axis: RankAxis) -> Tensor:
    """P -> I: the sum over the axis. Forward all-reduce, backward nothing (Megatron's *g*)."""
    return x if axis.size == 1 else _AllReduce.apply(x, (), axis)


def all_reduce_to_replicate(x: Tensor, axis: RankAxis) -> Tensor:
    """P -> R: the sum over the axis. Forward all-reduce, backward all-reduce."""
    return x if axis.size == 1 else _AllReduceToReplicate.apply(x, (), axis)


def all_reduce_max(x: Tensor, axis: RankAxis) -> Tensor:
    """P(max) -> R: the greatest over the axis, element by element. No gradient passes: the result is detached."""
    return x if axis.size == 1 else _max(x.detach(), (), axis)


def to_replicate(x: Tensor, axis: RankAxis) -> Tensor:
    """I -> R: x itself. Forward nothing, backward all-reduce (Megatron's *f*)."""
    return x if axis.size == 1 else _ToReplicate.apply(x, (), axis)


def to_invariant(x: Tensor, axis: RankAxis) -> Tensor:
    """R -> I: x itself. Forward nothing; backward the first rank of the axis keeps the gradient, the others have
    zeros, so that the ranks' summands add up to it once."""
    return x if axis.size == 1 else _ToInvariant.apply(x, (), axis)


def all_gather(x: Tensor, dim: int, axis: RankAxis) -> Tensor:
    """S(dim) -> R: the parts joined along dim, [.., s, ..] -> [.., n·s, ..]. Forward all-gather, backward
    reduce-scatter."""
    return x if axis.size == 1 else _AllGather.apply(x, (dim,), axis)


def all_gather_invariant(x: Tensor, dim: int, axis: RankAxis) -> Tensor:
    """S(dim) -> I: the parts joined along dim, [.., s, ..] -> [.., n·s, ..]. Forward all-gather, backward a slice."""
    return x if axis.size == 1 else _AllGatherInvariant.apply(x, (dim,), axis)


def shard(x: Tensor, dim: int, axis: RankAxis) -> Tensor:
    """R -> S(dim): this rank's part, [.., n·s, ..] -> [.., s, ..]. Forward a slice, backward padding with zeros."""
    return x if axis.size == 1 else _Shard.apply(x, (dim,), axis)


def shard_invariant(x: Tensor, dim: int, axis: RankAxis) -> Tensor:
    """I -> S(dim): this rank's part, [.., n·s, ..] -> [.., s, ..]. Forward a slice, backward all-gather."""
    return x if axis.size == 1 else _ShardInvariant.apply(x, (dim,), axis)


def reduce_scatter(x: Tensor, dim: int, axis: RankAxis) -> Tensor:
    """P -> S(dim): this rank's part of the sum, [.., n·s, ..] -> [.., s, ..]. Forward reduce-scatter, backward
    all-gather."""
    return x if axis.size == 1 else _ReduceScatter.apply(x, (dim,), axis)


def all_to_all(x: Tensor, source: int, target: int, axis: RankAxis) -> Tensor:
    """S(source) -> S(target): [.., s, .., n·t, ..] -> [.., n·s, .., t, ..]. Forward and backward all-to-all."""
    return x if axis.size == 1 else _AllToAll.apply(x, (source, target), axis)


def replicate_to_partial(x: Tensor, axis: RankAxis) -> Tensor:
    """R -> P: the first rank of the axis holds x, the others zeros. Nothing crosses; backward likewise."""
    return x if axis.size == 1 else _ReplicateToPartial.apply(x, (), axis)


def invariant_to_partial(x: Tensor, axis: RankAxis) -> Tensor:
    """I -> P: the first rank of the axis holds x, the others zeros. Nothing crosses; backward the gradient itself,
    the same on every rank."""
    return x if axis.size == 1 else _InvariantToPartial.apply(x, (), axis)


def shard_to_partial(x: Tensor, dim: int, axis: RankAxis) -> Tensor:
    """S(dim) -> P: each rank holds its own part in its place and zeros elsewhere, [.., s, ..] -> [.., n·s, ..].
    Nothing crosses; backward a slice."""
    return x if axis.size == 1 else _ShardToPartial.apply(x, (dim,), axis)
