"""Segments that keep what is dear to compute, and run the cheap rest again in the backward.

torch's selective activation checkpointing under the policy of ``KEPT``: what products, convolutions, attention and
collectives return is kept; elementwise operators, norms and reshapes run again.
``autoplan.search.block_cost.saved_tensors`` prices it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

KEPT = {
    "aten": (
        "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_grouped_mm", "_scaled_mm",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    "autoplan": ("experts", "routed_experts"),
    "_c10d_functional": (
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
    ),
}  # fmt: skip
"""Operators whose results are kept, by namespace. A collective's wait is none: on a result that has arrived it is
nothing, and it returns the same memory."""


def kept_operators() -> frozenset[Any]:
    """The overloads of ``KEPT`` that this torch has."""
    packets = [getattr(getattr(torch.ops, space), name, None) for space, names in KEPT.items() for name in names]
    return frozenset(packet.default for packet in packets if packet is not None)


_KEPT = kept_operators()


def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Whether an operator's result is kept. "Must", so that a compiler's own choice doesn't overrule it."""
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


contexts = partial(create_selective_checkpoint_contexts, policy)


def recompute_selectively(segments: Iterable[nn.Module]) -> None:
    """Makes the forward of each segment keep what is dear and run the rest again in the backward.

    The forward, not the call, so that a compiled segment holds it whole and hooks that gather parameters stay outside.
    The generator's state isn't put back: dropout draws nothing, its masks follow from a key.
    """
    for segment in segments:
        segment.forward = checkpointed(segment.forward)


def checkpointed(forward: Any) -> Any:
    def selective(*inputs: Tensor) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)

    return selective
