"""Products beside the redistribution that feeds or follows them, both cut into chunks: one chunk is sent while another
is multiplied.

Before column-parallel products each rank's part is cut along the dim that is gathered. While a chunk of all ranks is
multiplied, the next one is gathered, so that the first alone is waited for. After a row-parallel product the rows are
cut: while one chunk is summed, the next is multiplied, and the last sum alone is waited for. Its backward gathers as
the first forward does. (Wang et al. 2023, "Overlap communication with dependent computation via decomposition";
Megatron-LM's ``tp_comm_overlap``, torchtitan's asynchronous tensor parallelism.)

A chunk of a gather holds some rows of each rank, so that what it gives lies in as many places of the result:

    result along dim     rank 0: chunk 0, chunk 1, ..; rank 1: chunk 0, chunk 1, ..
    chunk i, stacked     rank 0: chunk i; rank 1: chunk i; ..

Chunks cross stacked, as the collectives give and take them; each product is copied to its places.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.column_linear import Given, Products, each_product, flat, padded, products, side_by_side


def chunked_linear(
    x: Tensor, weights: Sequence[Tensor], dim: int, axis: MeshAxis, chunks: int, keep: bool = True, biases: Given = (),
    transposed: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x [.., s, .., k] S(dim) on the axis, weights [n_i, k] S(0) -> each product with ``all_gather(x, dim, axis)``,
    [.., n·s, .., n_i].

    chunks  into how many s is cut, or as many of them as divide it; dim isn't the last
    others  as of ``regathered_linear``, whose backward this has
    """
    if axis.size == 1:
        return products(x, None, weights, biases, transposed, None, None, ())
    chunks = math.gcd(chunks, x.shape[dim])
    return _ChunkedProducts.apply(x, chunks, transposed, dim, axis, keep, *weights, *padded(biases, weights))


def row_linear(
    x: Tensor, weight: Tensor, dim: int | None, axis: MeshAxis, chunks: int, transposed: bool = False
) -> Tensor:
    """x [.., k] S(-1) on the axis, weight [n, k] S(1) -> the sum over the axis of x @ weightᵀ: this rank's part along
    ``dim``, or all of it, the same everywhere, where that is None.

    chunks      into how many the rows are cut, those of a rank's part or all of them, or as many as divide these
    transposed  the weight lies [k, n], S(0)
    """
    if axis.size == 1:
        return each_product(x, [weight], [None], transposed)[0]
    rows = math.prod(x.shape[:-1]) if dim is None else x.shape[dim] // axis.size
    chunks = math.gcd(chunks, rows)
    return _RowProduct.apply(x, weight, dim, axis, chunks, transposed)


def gathered_chunks(x: Tensor, dim: int, axis: MeshAxis, chunks: int) -> Iterator[Tensor]:
    """x in chunks along dim, each of all members [n, .., s / chunks, ..]; the next is under way when one is given."""
    parts = x.chunk(chunks, dim)
    coming = raw.start_stack(parts[0], axis)
    for following in parts[1:]:
        earlier, coming = coming, raw.start_stack(following, axis)
        yield earlier()
    yield coming()


def place(whole: Tensor, dim: int, axis: MeshAxis, chunks: int, number: int) -> Tensor:
    """The places of a chunk in [.., n·s, ..], as a view that lies as the chunk does, [n, .., s / chunks, ..]."""
    rows = whole.shape[dim] // (axis.size * chunks)
    return whole.unflatten(dim, (axis.size, chunks, rows)).select(dim + 1, number).movedim(dim, 0)


class _ChunkedProducts(Products):
    """Its backward is that of products of what was gathered."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, x: Tensor, chunks: int, transposed: bool, dim: int, axis: MeshAxis, keep: bool, *operands: Tensor | None
    ) -> tuple[Tensor, ...]:
        count = len(operands) // 2
        weights, biases = [w for w in operands[:count] if w is not None], operands[count:]
        joined, bias = side_by_side(weights), side_by_side(biases)
        trained = any(ctx.needs_input_grad[6 : 6 + count])
        keep = keep and trained
        shape = [*x.shape[:dim], axis.size * x.shape[dim], *x.shape[dim + 1 :]]
        whole = x.new_empty(shape) if keep else None
        sizes = [w.shape[1 if transposed else 0] for w in weights]
        results = [x.new_empty([*shape[:-1], size]) for size in sizes]
        at_once = not transposed and (bias is not None or not any(b is not None for b in biases))
        for number, rows in enumerate(gathered_chunks(x, dim, axis, chunks)):
            if joined is not None and at_once:
                found: Sequence[Tensor] = functional.linear(rows, joined, bias).split(sizes, -1)
            else:
                found = each_product(rows, weights, biases, transposed)
            for result, part in zip(results, found, strict=True):
                place(result, dim, axis, chunks, number).copy_(part)
            if whole is not None:
                place(whole, dim, axis, chunks, number).copy_(rows)
        ctx.again, ctx.transposed, ctx.dim, ctx.axis, ctx.count = not keep, transposed, dim, axis, count
        ctx.save_for_backward((whole if keep else x) if trained else None, *(weights if joined is None else [joined]))
        ctx.sizes = None if joined is None else [w.shape[0] for w in weights]
        return tuple(results)


class _RowProduct(Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, dim: int | None, axis: MeshAxis, chunks: int, transposed: bool
    ) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.dim, ctx.axis, ctx.chunks, ctx.transposed = dim, axis, chunks, transposed
        matrix = weight if transposed else weight.t()
        if dim is None:
            return summed_chunks(x, matrix, axis, chunks)
        return scattered_chunks(x, matrix, dim, axis, chunks)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        matrix = weight.t() if ctx.transposed else weight
        of_input, of_weight = ctx.needs_input_grad[:2]
        whole, arrived = gradient, None
        if ctx.dim is None:
            arrived = gradient @ matrix if of_input else None
        elif of_input:
            whole, arrived = gathered_product(gradient, matrix, ctx.dim, ctx.axis, ctx.chunks, of_weight)
        elif of_weight:
            whole = raw.all_gather(gradient, ctx.dim, ctx.axis)
        found = None
        if of_weight:
            rows, read = flat([whole, x])
            found = read.t() @ rows if ctx.transposed else rows.t() @ read
        return arrived, found, None, None, None, None


def summed_chunks(x: Tensor, matrix: Tensor, axis: MeshAxis, chunks: int) -> Tensor:
    """The sum over the axis of x [.., k] @ matrix [k, n]: a chunk of rows is summed while the next is multiplied."""
    rows = flat([x])[0].chunk(chunks)
    if torch.compiler.is_compiling():  # which decides itself what is written where
        coming = [raw.start_sum(part @ matrix, None, axis) for part in rows]
        return torch.cat([arrived() for arrived in coming]).view(*x.shape[:-1], matrix.shape[1])
    result = x.new_empty([*x.shape[:-1], matrix.shape[1]])
    places = flat([result])[0].chunk(chunks)
    coming = [raw.start_sum(torch.mm(part, matrix, out=y), None, axis) for part, y in zip(rows, places, strict=True)]
    for arrived in coming:
        arrived()
    return result


def scattered_chunks(x: Tensor, matrix: Tensor, dim: int, axis: MeshAxis, chunks: int) -> Tensor:
    """The same, this rank's part along dim of it: a chunk has some rows of each rank's part."""
    shape = [*x.shape[:dim], x.shape[dim] // axis.size, *x.shape[dim + 1 : -1], matrix.shape[1]]
    result = x.new_empty(shape)
    places = result.chunk(chunks, dim)
    coming: Callable[[], Tensor] | None = None
    for number in range(chunks):
        earlier, coming = coming, raw.start_scatter(place(x, dim, axis, chunks, number) @ matrix, axis)
        if earlier is not None:
            places[number - 1].copy_(earlier())
    assert coming is not None
    places[-1].copy_(coming())
    return result


def gathered_product(
    x: Tensor, matrix: Tensor, dim: int, axis: MeshAxis, chunks: int, keep: bool
) -> tuple[Tensor, Tensor]:
    """What is gathered of x, where it is kept, else x; and its product with a matrix [k, n]."""
    shape = [*x.shape[:dim], axis.size * x.shape[dim], *x.shape[dim + 1 :]]
    whole, result = x.new_empty(shape) if keep else None, x.new_empty([*shape[:-1], matrix.shape[1]])
    for number, rows in enumerate(gathered_chunks(x, dim, axis, chunks)):
        place(result, dim, axis, chunks, number).copy_(rows @ matrix)
        if whole is not None:
            place(whole, dim, axis, chunks, number).copy_(rows)
    return x if whole is None else whole, result
