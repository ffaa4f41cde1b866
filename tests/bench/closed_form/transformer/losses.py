"""What the cross-entropy makes of its logits."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.arithmetic import Number

FLOAT = 4
"""Bytes of a float32 element."""

LOSSES = ("eager", "in place", "fused")
"""Ways to write the cross-entropy: PyTorch's, with the logits cast to float32; Megatron-LM's, whose one float32 copy
becomes softmax and gradient in place; one kernel that leaves the gradient where the logits were (Liger, or a compiled
loss)."""


def loss_bytes(
    tokens: Number, columns: Number, element_bytes: Number, loss: str = "eager", split: bool = False
) -> Number:
    """Peak of the logits [tokens, columns] and what the loss makes of them, in bytes, forward or backward.

    columns        the rank's part of the vocabulary
    element_bytes  of the logits as the head makes them
    split          the vocabulary is split over ranks

    eager     backward three float32 copies: the log-softmax, the gradient of the negative log-likelihood and that of
              the log-softmax; forward two and the logits, which is no more. Split, a fourth: the exponentials
              (PyTorch's ``loss_parallel``: ``(grad_input + exp(x)) * grad_output``)
    in place  the logits and one float32 copy; backward that copy and the logits' gradient (Megatron-LM
              core/tensor_parallel/cross_entropy.py)
    fused     the logits and their gradient
    """
    if loss not in LOSSES:
        raise ValueError(f"loss {loss!r} is none of {', '.join(LOSSES)}")
    copies: Mapping[str, Number] = {
        "eager": (4 if split else 3) * FLOAT,
        "in place": element_bytes + FLOAT,
        "fused": 2 * element_bytes,
    }
    return copies[loss] * tokens * columns
