"""Column-parallel products whose weights' gradients are computed while the gradient of their input is summed.

Each rank has some columns of every weight, so what it computes of the input's gradient is a summand. The backward
gives that first, starts the sum over the axis (an all-reduce, or a reduce-scatter where the input was gathered), and
computes the weights' gradients meanwhile (Megatron-LM's ``LinearWithGradAccumulationAndAsyncCommunication``; Shoeybi et
al. 2019). Autograd's own product gives both at once, so that a redistribution of its own would wait for both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis

Given = Sequence[Tensor | None]


def column_linear(
    x: Tensor, weights: Sequence[Tensor], axis: MeshAxis, biases: Given = (), transposed: bool = False
) -> tuple[Tensor, ...]:
    """x [.., k] I on the axis, weights [n_i, k] S(0) -> x @ weight_iᵀ (+ bias_i [n_i]) for each, [.., n_i].

    biases      of some or all of them, None where there is none
    transposed  weights lie [k, n_i], S(1)
    As products of ``to_replicate(x)``; backward an all-reduce of x's gradient, under the weights' gradients.
    """
    return products(x, None, weights, biases, transposed, None, axis)


def gathered_linear(
    x: Tensor, whole: Tensor, weights: Sequence[Tensor], dim: int, axis: MeshAxis, biases: Given = (),
    transposed: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The same of x [.., s, .., k] S(dim), and what ``all_gather(x, dim, axis)`` made of it, [.., n·s, .., k].

    As products of ``whole``; backward a reduce-scatter, under the weights' gradients.
    """
    return products(x, whole.detach(), weights, biases, transposed, dim, axis)


def products(
    x: Tensor, whole: Tensor | None, weights: Sequence[Tensor], biases: Given, transposed: bool, dim: int | None,
    axis: MeshAxis,
) -> tuple[Tensor, ...]:  # fmt: skip
    """``whole``: what the weights multiply; None: x itself."""
    given = (*biases, *[None] * (len(weights) - len(biases)))
    if axis.size == 1:
        rows = x if whole is None else whole
        return tuple(multiply(rows, w, b, transposed) for w, b in zip(weights, given, strict=True))
    return _Products.apply(x, whole, transposed, dim, axis, *weights, *given)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    return functional.linear(x, weight.t() if transposed else weight, bias)


class _Products(Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, whole: Tensor | None, transposed: bool, dim: int | None, axis: MeshAxis,
        *operands: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        count = len(operands) // 2
        weights = [w for w in operands[:count] if w is not None]
        rows = x if whole is None else whole
        ctx.save_for_backward(rows, *weights)
        ctx.transposed, ctx.dim, ctx.axis, ctx.count = transposed, dim, axis, count
        return tuple(multiply(rows, w, b, transposed) for w, b in zip(weights, operands[count:], strict=True))

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
        coming = None
        if ctx.needs_input_grad[0]:
            summand = None
            for gradient, weight in zip(rows, weights, strict=True):
                matrix = weight.t() if ctx.transposed else weight
                summand = gradient @ matrix if summand is None else torch.addmm(summand, gradient, matrix)
            assert summand is not None
            coming = raw.start_sum(summand.view(x.shape), ctx.dim, ctx.axis)
            del summand
        needed = ctx.needs_input_grad[5:]
        given = x.reshape(-1, x.shape[-1])
        found: list[Tensor | None] = []
        for gradient, weighs in zip(rows, needed[: ctx.count], strict=True):
            pair = (given, gradient) if ctx.transposed else (gradient, given)
            found.append(pair[0].t() @ pair[1] if weighs else None)
        found += [g.sum(0) if adds else None for g, adds in zip(rows, needed[ctx.count :], strict=True)]
        arrived = raw.wait(coming) if coming is not None else None
        return (arrived, None, None, None, None, *found)
