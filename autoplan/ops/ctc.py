"""Connectionist temporal classification (Graves et al. 2006), each row's loss by itself.

torch's operator takes the targets of all rows one after the other, or padded, and gives a second result whose shape
follows from their values; torch.export takes neither. While a model is traced ``F.ctc_loss`` is ``traced_loss``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SCHEMA = (
    "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity)"
    " -> Tensor"
)
plain_loss: Callable[..., Tensor] = functional.ctc_loss


def traced_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """What ``F.ctc_loss`` computes of log_probs [t, n, classes], or of one row [t, classes], by the operator of single
    rows."""
    if log_probs.ndim == 2 and reduction in ("none", "mean", "sum"):
        times, labels = (torch.as_tensor(given).reshape(1) for given in (input_lengths, target_lengths))
        row, own = log_probs.unsqueeze(1), targets.reshape(1, -1)
        return traced_loss(row, own, times, labels, blank, reduction, zero_infinity).reshape(())
    if log_probs.ndim != 3 or reduction not in ("none", "mean", "sum"):  # what torch refuses
        return plain_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    lengths = [torch.as_tensor(given, device=log_probs.device) for given in (input_lengths, target_lengths)]
    losses = torch.ops.autoplan.ctc_losses(log_probs, targets, *lengths, blank, zero_infinity)
    if reduction == "mean":
        return (losses / lengths[1].clamp(min=1)).mean()
    return losses if reduction == "none" else losses.sum()


@torch.library.custom_op("autoplan::ctc_losses", mutates_args=(), schema=SCHEMA)
def _losses(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    return plain_loss(log_probs, targets, input_lengths, target_lengths, blank, "none", zero_infinity)


@_losses.register_fake
def _(log_probs: Tensor, *_: object) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.inputs = inputs


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """By torch's own, once more: traces ask which parameters have a gradient, not for its numbers."""
    log_probs, *others = ctx.inputs
    with torch.enable_grad():
        entering = log_probs.detach().requires_grad_()
        losses = plain_loss(entering, *others[:4], "none", others[4])
    return torch.autograd.grad(losses, entering, gradient)[0], None, None, None, None, None


_losses.register_autograd(_gradients, setup_context=_keep)
