"""The kernels that a real device would take, where torch asks the device which it has and the fake one has none.

Attention's choice is that of torch's ``sdp_utils`` in short: the flash kernel without a mask, on a GPU in half
precision; else on a GPU the memory-efficient kernel; the plain products where a head is too long for either. A ring's
blocks (``runtime.ops.attention.blocks``) are chosen likewise. RMS norm is one kernel on a GPU (``aten::rms_norm`` in
layer_norm.cpp), several on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from autoplan.rehearsal.device.streams import HALF, NAME
from autoplan.runtime.ops.attention import blocks, heads
from autoplan.runtime.ops.attention.blocks import Sight, kernel, kernel_on
from autoplan.runtime.ops.attention.heads import takes_groups

LONGEST_HEAD = 256  # of the flash kernels
aten = torch.ops.aten


@contextmanager
def kernels_of(kind: str) -> Iterator[None]:
    """Within it the fake device runs the kernels that a "cpu" or a "cuda" device would."""
    norm, plain = functional.rms_norm, functional.scaled_dot_product_attention
    choose = {"cpu": on_cpu, "cuda": on_cuda}[kind]

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if query.device.type != NAME:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        result = choose(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if result is None:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return result

    def rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        if kind == "cpu" or x.device.type != NAME:
            return norm(x, shape, weight, eps)
        return aten._fused_rms_norm(x, shape, weight, eps)[0]

    def of_block(q: Tensor, v: Tensor, sight: Sight) -> str:
        return kernel_on(kind, q, v, sight) if q.device.type == NAME else kernel(q, v, sight)

    attends = patch.object(functional, "scaled_dot_product_attention", attention)
    groups = patch.object(heads, "takes_groups", lambda q, mask=None: kind == "cpu" or takes_groups(q, mask))
    ring = patch.object(blocks, "kernel", of_block)
    with attends, groups, ring, patch.object(functional, "rms_norm", rms_norm):
        yield


Choice = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, bool, float | None, bool], Tensor | None]


def on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None,
    grouped: bool,
) -> Tensor | None:  # fmt: skip
    if dropout or query.ndim != 4 or (mask is not None and mask.requires_grad):
        return None
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, key, value, dropout, causal, attn_mask=added(mask, query), scale=scale)[0]


def on_cuda(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None,
    grouped: bool,
) -> Tensor | None:  # fmt: skip
    if query.ndim != 4 or query.shape[-1] > LONGEST_HEAD:
        return None
    if mask is None and query.dtype in HALF and query.shape[-1] == value.shape[-1]:  # sdp_utils: heads of one size
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout, causal, return_debug_mask=False, scale=scale)[0]
    if grouped:
        key, value = repeated(key, query), repeated(value, query)
    needs = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    efficient = aten._scaled_dot_product_efficient_attention
    bias = added(mask, query)
    if bias is not None:
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    return efficient(query, key, value, bias, needs, dropout, causal, scale=scale)[0]


def repeated(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each of the query's heads."""
    times = query.shape[-3] // x.shape[-3]
    return x if times == 1 else x.repeat_interleave(times, -3)


def added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as what is added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask.logical_not(), float("-inf"))
