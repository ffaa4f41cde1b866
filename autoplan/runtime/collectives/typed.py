"""What an exported program calls to redistribute a tensor: each forward collective with its own backward.

One function for each step between states (autoplan.redistribution). The backward follows from the states: the gradient
of S(d) is S(d), of R it is P, of I it is I, of P it is R. All are exact adjoints: with A the forward over the whole
group, the gradients of all ranks together are A transposed applied to the gradients of all results.

Every function returns its argument where the axis has one member. ``dim`` is a dim of the tensor, ``axis`` the mesh
axis as this rank sees it, or several that act as one: the group's members then hold the parts of a dim in their order.
Shapes: n is the axis' size. Results are waited for and contiguous, so no asynchronous tensor leaks into a program or
into a leaf's ``.grad``; ``torch.compile(fullgraph=True)`` takes them whole.
"""

from collections.abc import Callable

from torch import Tensor
from torch.autograd import Function

from autoplan.runtime.collectives import point_to_point as exchanging
from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis


def _pair(forward: Callable[..., Tensor], backward: Callable[..., Tensor]) -> type[Function]:
    """The autograd Function of two primitives that are adjoint to one another; both take the same arguments."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x: Tensor, arguments: tuple, axis: MeshAxis) -> Tensor:
            ctx.arguments, ctx.axis = arguments, axis
            return forward(x, *arguments, axis)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
            return backward(gradient, *ctx.arguments, ctx.axis), None, None

    return Pair


_AllReduce = _pair(raw.all_reduce_sum, raw.identity)
_AllReduceToReplicate = _pair(raw.all_reduce_sum, raw.all_reduce_sum)
_ToReplicate = _pair(raw.identity, raw.all_reduce_sum)
_ToInvariant = _pair(raw.identity, raw.mask)
_AllGather = _pair(raw.all_gather, raw.reduce_scatter_sum)
_AllGatherInvariant = _pair(raw.all_gather, raw.shard)
_GatherTwice = _pair(raw.gather_twice, raw.reduce_scatter_sum)
_GatherTwiceInvariant = _pair(raw.gather_twice, raw.shard)
_Shard = _pair(raw.shard, raw.pad)
_ShardInvariant = _pair(raw.shard, raw.all_gather)
_ReduceScatter = _pair(raw.reduce_scatter_sum, raw.all_gather)
_AllToAll = _pair(raw.all_to_all, raw.all_to_all_back)
_ReplicateToPartial = _pair(raw.mask, raw.mask)
_InvariantToPartial = _pair(raw.mask, raw.identity)
_ShardToPartial = _pair(raw.pad, raw.shard)
_Permute = _pair(exchanging.permute, exchanging.permute_back)
_Exchange = _pair(exchanging.fetch, exchanging.collect_back)
_ExchangeInvariant = _pair(exchanging.fetch, exchanging.fetch_back)
_ExchangeSum = _pair(exchanging.collect, exchanging.fetch_back)


class _AllReduceInPlace(Function):
    @staticmethod
    def forward(ctx, x: Tensor, axis: MeshAxis) -> Tensor:
        ctx.mark_dirty(x)
        raw.sum_in_place(x, axis).wait()
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def all_reduce(x: Tensor, axis: MeshAxis, in_place: bool = False) -> Tensor:
    """P -> I: the sum over the axis. Forward all-reduce, backward nothing (Megatron's *g*).

    in_place  x is nobody's but the result's: no product of another reads it, and no backward
    """
    if axis.size == 1:
        return x
    return _AllReduceInPlace.apply(x, axis) if in_place and raw.sums_in_place(x) else _AllReduce.apply(x, (), axis)


def all_reduce_to_replicate(x: Tensor, axis: MeshAxis) -> Tensor:
    """P -> R: the sum over the axis. Forward all-reduce, backward all-reduce."""
    return x if axis.size == 1 else _AllReduceToReplicate.apply(x, (), axis)


def all_reduce_max(x: Tensor, axis: MeshAxis, in_place: bool = False) -> Tensor:
    """P(max) -> R: the greatest over the axis, element by element. No gradient passes: the result is detached.

    in_place  as of ``all_reduce``, of an x that has no gradient
    """
    if axis.size == 1:
        return x
    if in_place and raw.sums_in_place(x):
        raw.max_in_place(x, axis).wait()
        return x
    return raw.all_reduce_max(x.detach(), axis)


def to_replicate(x: Tensor, axis: MeshAxis) -> Tensor:
    """I -> R: x itself. Forward nothing, backward all-reduce (Megatron's *f*)."""
    return x if axis.size == 1 else _ToReplicate.apply(x, (), axis)


def to_invariant(x: Tensor, axis: MeshAxis) -> Tensor:
    """R -> I: x itself. Forward nothing; backward the first rank of the axis keeps the gradient, the others have
    zeros, so that the ranks' summands add up to it once."""
    return x if axis.size == 1 else _ToInvariant.apply(x, (), axis)


def all_gather(x: Tensor, dim: int, axis: MeshAxis, keep: bool = True) -> Tensor:
    """S(dim) -> R: the parts joined along dim, [.., s, ..] -> [.., n·s, ..]. Forward all-gather, backward
    reduce-scatter. ``keep``: a compiled segment that recomputes selectively keeps the result; else it gathers again."""
    return x if axis.size == 1 else (_AllGather if keep else _GatherTwice).apply(x, (dim,), axis)


def all_gather_invariant(x: Tensor, dim: int, axis: MeshAxis, keep: bool = True) -> Tensor:
    """S(dim) -> I: the parts joined along dim, [.., s, ..] -> [.., n·s, ..]. Forward all-gather, backward a slice.
    ``keep``: as of ``all_gather``."""
    return x if axis.size == 1 else (_AllGatherInvariant if keep else _GatherTwiceInvariant).apply(x, (dim,), axis)


def shard(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """R -> S(dim): this rank's part, [.., n·s, ..] -> [.., s, ..]. Forward a slice, backward padding with zeros."""
    return x if axis.size == 1 else _Shard.apply(x, (dim,), axis)


def shard_invariant(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """I -> S(dim): this rank's part, [.., n·s, ..] -> [.., s, ..]. Forward a slice, backward all-gather."""
    return x if axis.size == 1 else _ShardInvariant.apply(x, (dim,), axis)


def reduce_scatter(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """P -> S(dim): this rank's part of the sum, [.., n·s, ..] -> [.., s, ..]. Forward reduce-scatter, backward
    all-gather."""
    return x if axis.size == 1 else _ReduceScatter.apply(x, (dim,), axis)


def all_to_all(x: Tensor, source: int, target: int, axis: MeshAxis) -> Tensor:
    """S(source) -> S(target): [.., s, .., n·t, ..] -> [.., n·s, .., t, ..]. Forward and backward all-to-all."""
    return x if axis.size == 1 else _AllToAll.apply(x, (source, target), axis)


def replicate_to_partial(x: Tensor, axis: MeshAxis) -> Tensor:
    """R -> P: the first rank of the axis holds x, the others zeros. Nothing crosses; backward likewise."""
    return x if axis.size == 1 else _ReplicateToPartial.apply(x, (), axis)


def invariant_to_partial(x: Tensor, axis: MeshAxis) -> Tensor:
    """I -> P: the first rank of the axis holds x, the others zeros. Nothing crosses; backward the gradient itself,
    the same on every rank."""
    return x if axis.size == 1 else _InvariantToPartial.apply(x, (), axis)


def shard_to_partial(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """S(dim) -> P: each rank holds its own part in its place and zeros elsewhere, [.., s, ..] -> [.., n·s, ..].
    Nothing crosses; backward a slice."""
    return x if axis.size == 1 else _ShardToPartial.apply(x, (dim,), axis)


def reduce_scatter_max(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """P(max) -> S(dim): this rank's part of the greatest, [.., n·s, ..] -> [.., s, ..]. No gradient passes: the result
    is detached."""
    return x if axis.size == 1 else raw.reduce_scatter_max(x.detach(), dim, axis)


def replicate_to_max(x: Tensor, axis: MeshAxis) -> Tensor:
    """R -> P(max), of a tensor without gradients: x itself, on every rank. Nothing crosses."""
    return x


def permute(x: Tensor, spec: str, axis: MeshAxis) -> Tensor:
    """Each rank takes over the part of one other, or keeps its own, so that the parts lie as ``spec`` says, e.g.
    ``"x, y -> y, x"`` (autoplan.redistribution.exchange.messages); the shape stays. Forward and backward permute.

    Axes of the group in no dim are all R, all I or all P.
    """
    if axis.size == 1:
        return x
    sources, takers = exchanging.partners(spec, axis.names, axis.sizes)
    return _Permute.apply(x, (sources[axis.rank], takers[axis.rank]), axis)


def exchange(x: Tensor, shape: tuple[int, ...], spec: str, axis: MeshAxis) -> Tensor:
    """S, R -> S, R: each rank receives what it lacks of its part after, straight from a rank that holds it.

    shape  of the tensor that the group's members share
    spec   how their axes split it before and after, ``"x, - -> -, y"``; an axis in no dim is R

    Sizes needn't divide: parts are ``torch.chunk``'s, and may be empty. Forward all-to-all-v; backward the messages
    reversed, and what a rank receives is added up.
    """
    return x if axis.size == 1 else _Exchange.apply(x, _routes("exchange", spec, shape, axis), axis)


def exchange_invariant(x: Tensor, shape: tuple[int, ...], spec: str, axis: MeshAxis) -> Tensor:
    """S, I -> S, I: as ``exchange``, but gradients of I are whole, so the backward fetches, too: it is
    ``exchange_invariant`` of the reversed spec."""
    return x if axis.size == 1 else _ExchangeInvariant.apply(x, _routes("exchange_invariant", spec, shape, axis), axis)


def exchange_sum(x: Tensor, shape: tuple[int, ...], spec: str, axis: MeshAxis) -> Tensor:
    """S, P -> S: each rank receives the summands of its part after and adds them up; in ``spec`` an axis in no dim is P
    before. The adjoint of ``exchange`` of the reversed spec, which is its backward. Forward and backward
    all-to-all-v."""
    return x if axis.size == 1 else _ExchangeSum.apply(x, _routes("exchange_sum", spec, shape, axis), axis)


def _routes(op: str, spec: str, shape: tuple[int, ...], axis: MeshAxis) -> exchanging.Routes:
    return exchanging.routes(op, spec, tuple(shape), axis.rank, axis.names, axis.sizes)
