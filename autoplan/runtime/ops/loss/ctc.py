"""Connectionist temporal classification, row by row."""

from torch import Tensor
from torch.nn import functional


def ctc_losses(
    log_probs: Tensor, targets: Tensor, valid: Tensor | None, input_lengths: Tensor, target_lengths: Tensor,
    blank: int = 0, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """log_probs [t, n, classes], targets [n, s], valid [n, s], lengths [n] -> [n]: each row's loss.

    valid  which targets count, wherever they stand in their row; None: the first ``target_lengths``
    """
    if valid is not None:
        targets = targets.gather(1, (~valid).byte().argsort(dim=1, stable=True))
    return functional.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, "none", zero_infinity=zero_infinity
    )
