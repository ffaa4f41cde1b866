"""Products of one tensor with several weights, as one product where the weights lie side by side in memory.

Column-parallel ones besides hide a sum: each rank has some columns of every weight, so what it computes of the input's
gradient is a summand. The backward gives that first, starts the sum over the axis (an all-reduce, or a reduce-scatter
where the input was gathered), and computes the weights' gradients meanwhile (Megatron-LM's
``LinearWithGradAccumulationAndAsyncCommunication``; Shoeybi et al. 2019). Autograd's own product gives both at once, so
that a redistribution of its own would wait for both.

What was gathered for such products is kept for the weights' gradients; or, where a segment recomputes selectively, the
part alone is, and the gather runs again under the product that gives the input's gradient (``regathered_linear``;
Korthikanti et al. 2022, section 4.2.2).

``Parameters.side_by_side`` has weights lie so. Where they don't, because ZeRO gathers each into memory of its own, or a
compiler is to see each as it is, the results are the same, of as many products as there are weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis

Given = Sequence[Tensor | None]


def joined_linear(
    x: Tensor, weights: Sequence[Tensor], biases: Given = (), transposed: bool = False, apart: Sequence[int] = ()
) -> tuple[Tensor, ...]:
    """x [.., k], weights [n_i, k] -> x @ weight_iᵀ (+ bias_i [n_i]) for each, [.., n_i].

    biases      of all of them, or none
    transposed  weights lie [k, n], all of one size: one product of a batch of them; in half precision, where a batch
                is rounded otherwise, one after another
    apart       results that are copied out of the one product, by their places: those that the backward reads, where
                it would keep the whole product for them
    """
    return products(x, None, weights, biases, transposed, None, None, apart)


def regathered_linear(
    x: Tensor, weights: Sequence[Tensor], dim: int, axis: MeshAxis, keep: bool, biases: Given = (),
    transposed: bool = False, apart: Sequence[int] = (),
) -> tuple[Tensor, ...]:  # fmt: skip
    """As ``gathered_linear`` of ``all_gather(x, dim, axis)``, [.., n·s, .., k]. ``keep``: what was gathered is kept;
    else x is, and the gather runs again in the backward."""
    if axis.size == 1:
        return products(x, None, weights, biases, transposed, None, None, apart)
    if keep:
        return gathered_linear(x, raw.all_gather(x.detach(), dim, axis), weights, dim, axis, biases, transposed, apart)
    return Products.apply(x, None, transposed, dim, axis, tuple(apart), *weights, *padded(biases, weights))


def column_linear(
    x: Tensor, weights: Sequence[Tensor], axis: MeshAxis, biases: Given = (), transposed: bool = False,
    apart: Sequence[int] = (),
) -> tuple[Tensor, ...]:  # fmt: skip
    """x [.., k] I on the axis, weights [n_i, k] S(0) -> x @ weight_iᵀ (+ bias_i [n_i]) for each, [.., n_i].

    biases      of some or all of them, None where there is none
    transposed  weights lie [k, n_i], S(1)
    apart       as of ``joined_linear``
    As products of ``to_replicate(x)``; backward an all-reduce of x's gradient, under the weights' gradients.
    """
    return products(x, None, weights, biases, transposed, None, axis, apart)


def gathered_linear(
    x: Tensor, whole: Tensor, weights: Sequence[Tensor], dim: int, axis: MeshAxis, biases: Given = (),
    transposed: bool = False, apart: Sequence[int] = (),
) -> tuple[Tensor, ...]:  # fmt: skip
    """The same of x [.., s, .., k] S(dim), and what ``all_gather(x, dim, axis)`` made of it, [.., n·s, .., k].

    As products of ``whole``; backward a reduce-scatter, under the weights' gradients.
    """
    return products(x, whole.detach(), weights, biases, transposed, dim, axis, apart)


def products(
    x: Tensor, whole: Tensor | None, weights: Sequence[Tensor], biases: Given, transposed: bool, dim: int | None,
    axis: MeshAxis | None, apart: Sequence[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """``whole``: what the weights multiply; None: x itself. ``axis``: whose sum there is; None: there is none."""
    if axis is not None and axis.size == 1:
        x, whole, axis, dim = x if whole is None else whole, None, None, None
    return Products.apply(x, whole, transposed, dim, axis, tuple(apart), *weights, *padded(biases, weights))


def padded(biases: Given, weights: Sequence[Tensor]) -> Given:
    """One for each weight, None where there is none."""
    return (*biases, *[None] * (len(weights) - len(biases)))


def each_product(x: Tensor, weights: Sequence[Tensor], biases: Given, transposed: bool) -> list[Tensor]:
    """x [.., k] times each weight by itself."""
    pairs = list(zip(weights, biases, strict=True))
    if not transposed:
        return [functional.linear(x, weight, bias) for weight, bias in pairs]
    rows = x.reshape(-1, x.shape[-1])
    found = [rows @ weight if bias is None else torch.addmm(bias, rows, weight) for weight, bias in pairs]
    return [y.view(*x.shape[:-1], y.shape[-1]) for y in found]


def side_by_side(tensors: Given) -> Tensor | None:
    """All of them joined along their first dim, as a view of the memory in which they lie one after another; None
    where they don't."""
    first = tensors[0]
    if first is None or len(tensors) == 1 or torch.compiler.is_compiling():
        return None
    memory, place = first.untyped_storage(), first.storage_offset()
    for tensor in tensors:
        if (
            tensor is None or tensor.untyped_storage() is not memory or tensor.storage_offset() != place
            or tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:] or not tensor.is_contiguous()
        ):  # fmt: skip
            return None
        place += tensor.numel()
    return first.as_strided((sum(t.shape[0] for t in tensors if t is not None), *first.shape[1:]), first.stride())


class Products(Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, whole: Tensor | None, transposed: bool, dim: int | None, axis: MeshAxis | None,
        apart: tuple[int, ...], *operands: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        count = len(operands) // 2
        weights, biases = [w for w in operands[:count] if w is not None], operands[count:]
        ctx.again = whole is None and dim is not None
        rows = raw.all_gather(x, dim, axis) if ctx.again else x if whole is None else whole
        joined, bias = side_by_side(weights), side_by_side(biases)
        trained = any(ctx.needs_input_grad[6 : 6 + count])  # no other gradient reads what is multiplied
        read = (x if ctx.again else rows) if trained else None
        ctx.save_for_backward(read, *(weights if joined is None else [joined]))
        ctx.transposed, ctx.dim, ctx.axis, ctx.count = transposed, dim, axis, count
        ctx.sizes = None if joined is None else [w.shape[0] for w in weights]
        some = bias is None and any(b is not None for b in biases)
        if joined is None or some or (transposed and axis is None and rows.dtype.itemsize == 2):  # (see joined_linear)
            return tuple(each_product(rows, weights, biases, transposed))
        if transposed:
            results = of_batch(rows, joined.view(count, *weights[0].shape), bias)
        else:
            results = functional.linear(rows, joined, bias).split(ctx.sizes, -1)
        copied = torch.contiguous_format
        return tuple(r.clone(memory_format=copied) if i in apart else r for i, r in enumerate(results))

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        weigh, add = ctx.needs_input_grad[6 : 6 + ctx.count], ctx.needs_input_grad[6 + ctx.count :]
        # in half precision each product is rounded as autograd rounds it, where no sum over ranks follows
        rounded = ctx.axis is None and gradients[0].dtype.itemsize == 2
        whole = ctx.sizes if not ctx.transposed and len(set(weigh)) == len(set(add)) == 1 else None
        joined = weights[0] if whole and not rounded else None
        weights = weights[0].split(ctx.sizes) if ctx.sizes and joined is None else weights
        rows = flat(gradients) if joined is None else [torch.cat(gradients, -1).view(-1, joined.shape[0])]
        gathering = raw.start_gather(x, ctx.dim, ctx.axis, gradients[0]) if ctx.again and x is not None else None
        summand = coming = None
        if ctx.needs_input_grad[0]:
            shape = (*gradients[0].shape[:-1], weights[0].shape[0 if ctx.transposed else 1])  # x may be a part of it
            summand = summed(rows, [w.t() if ctx.transposed else w for w in weights], rounded).view(shape)
        if summand is not None and ctx.axis is not None:
            coming, summand = raw.start_sum(summand, ctx.dim, ctx.axis), None
        x = x if gathering is None else gathering()
        read = None if x is None else x.reshape(-1, x.shape[-1])
        found = of_weights(read, rows, ctx.transposed, weigh, add, whole)
        arrived = summand if coming is None else coming()
        return (arrived, None, None, None, None, None, *found)


def of_batch(x: Tensor, weights: Tensor, bias: Tensor | None) -> Sequence[Tensor]:
    """x [.., k] times each of weights [count, k, n], with biases [count · n] behind one another: each [.., n]."""
    count, _, columns = weights.shape
    rows = x.reshape(-1, x.shape[-1]).expand(count, -1, -1)
    found = rows @ weights if bias is None else torch.baddbmm(bias.view(count, 1, columns), rows, weights)
    return found.view(count, *x.shape[:-1], columns).unbind()


def weight_gradients(
    x: Tensor | None, rows: Sequence[Tensor], transposed: bool, weigh: Sequence[bool]
) -> list[Tensor | None]:
    """Of each weight that has one, by a product of its own; x is kept wherever one has."""
    if x is None:
        return [None] * len(rows)
    if transposed:
        columns = x.t()
        return [columns @ gradient if needed else None for gradient, needed in zip(rows, weigh, strict=True)]
    return [gradient.t() @ x if needed else None for gradient, needed in zip(rows, weigh, strict=True)]


def of_weights(
    x: Tensor | None, rows: Sequence[Tensor], transposed: bool, weigh: Sequence[bool], add: Sequence[bool],
    whole: Sequence[int] | None,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of the weights, then of their biases, from x [rows, k] and the results' gradients, joined or not.

    x      None where no weight has one
    whole  the weights' first dims, where one product gives the gradients of all, and of all biases or none
    """
    if whole is None:
        found = weight_gradients(x, rows, transposed, weigh)
        return [*found, *(g.sum(0) if needed else None for g, needed in zip(rows, add, strict=True))]
    nothing: list[Tensor | None] = [None] * len(whole)
    if x is None and not add[0]:
        return [*nothing, *nothing]
    gradient = rows[0] if len(rows) == 1 else torch.cat(list(rows), -1)
    products = nothing if x is None else (gradient.t() @ x).split(whole)
    return [*products, *(gradient.sum(0).split(whole) if add[0] else nothing)]


def flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]


def summed(rows: Sequence[Tensor], weights: Sequence[Tensor], rounded: bool) -> Tensor:
    """Σ rows_i @ weight_i, [rows, k]; ``rounded``: each product first, the last one before, as autograd adds up."""
    if rounded:
        *others, last = [gradient @ weight for gradient, weight in zip(rows, weights, strict=True)]
        for other in reversed(others):
            last += other
        return last
    found = rows[0] @ weights[0]
    for gradient, weight in zip(rows[1:], weights[1:], strict=True):
        found = torch.addmm(found, gradient, weight)
    return found
