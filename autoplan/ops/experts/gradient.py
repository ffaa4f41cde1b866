"""The gradient of an operator on a mixture's experts, whether a compiler runs it or nobody does.

Both directions take (hidden, index, scores, first, down, biases) and settings. Forward gives the result and what is
kept; backward takes the result's gradient before these and what was kept after them, and gives gradients of hidden,
scores, down, each of first, each of biases. For a compiler both are operators of torch.library. Else their functions
run as they are: a call by torch.library costs more than the index arithmetic of a layer.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.library import CustomOpDef

Run = Callable[..., tuple[Tensor, list[Tensor]]]
Back = Callable[..., list[Tensor]]


def as_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """[.., width] -> [tokens, width] each."""
    return tuple(x if x.ndim == 2 else x.reshape(-1, x.shape[-1]) for x in tensors)


class Plain(Function):
    """Runs the functions themselves."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, back: Back, settings: Sequence[Any], count: int, hidden: Tensor, index: Tensor,
        scores: Tensor, down: Tensor, *operands: Tensor,
    ) -> Tensor:  # fmt: skip
        """operands  ``count`` of the first products' weights, then their biases"""
        result, kept = run(hidden, index, scores, operands[:count], down, operands[count:], *settings)
        ctx.back, ctx.settings, ctx.sizes = back, settings, (count, len(operands))
        ctx.save_for_backward(hidden, index, scores, down, *operands, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        given, kept = taken(ctx)
        d_hidden, d_scores, d_down, *found = ctx.back(gradient, *given, kept, *ctx.settings)
        return None, None, None, None, d_hidden, None, d_scores, d_down, *found


def taken(ctx: Any) -> tuple[tuple, Sequence[Tensor]]:
    """(hidden, index, scores, first, down, biases) and what was kept."""
    count, several = ctx.sizes
    hidden, index, scores, down, *rest = ctx.saved_tensors
    return (hidden, index, scores, rest[:count], down, rest[count:several]), rest[several:]


def register_gradient(operator: CustomOpDef, backward: Callable[..., list[Tensor]]) -> None:
    """Of an operator of torch.library; ``backward``: the other one."""

    def keep(ctx: Any, inputs: tuple, output: tuple[Tensor, list[Tensor]]) -> None:
        hidden, index, scores, first, down, biases, *ctx.settings = inputs
        ctx.sizes = len(first), len(first) + len(biases)
        ctx.mark_non_differentiable(*output[1])
        ctx.set_materialize_grads(False)  # of what is kept there are none
        ctx.save_for_backward(hidden, index, scores, down, *first, *biases, *output[1])

    def gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple:
        given, kept = taken(ctx)
        d_hidden, d_scores, d_down, *found = backward(gradient, *given, kept, *ctx.settings)
        nothing = ([None for _ in given] if isinstance(given, (list, tuple)) else None for given in ctx.settings)
        return d_hidden, None, d_scores, found[: ctx.sizes[0]], d_down, found[ctx.sizes[0] :], *nothing

    operator.register_autograd(gradients, setup_context=keep)
