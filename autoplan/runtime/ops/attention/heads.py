"""Attention where the ranks' code differs: shared key and value heads, causality over split rows, dropout."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.ops.attention.last_rows import last_rows, takes_blocks
from autoplan.runtime.ops.global_random import dropout


def takes_groups(q: Tensor, mask: Tensor | None = None) -> bool:
    """Whether the device's fused kernel takes fewer heads of keys than of queries: on an accelerator the one that takes
    neither float32 nor a mask. In float64 there is none anyway."""
    return q.device.type == "cpu" or q.dtype == torch.float64 or (q.dtype != torch.float32 and mask is None)


def grouped_query_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = True,
) -> Tensor:  # fmt: skip
    """scaled_dot_product_attention, by a fused kernel in float32 and under a mask, too, where key and value heads are
    shared.

    q [b.., h, rows, d]; k, v [b.., kv, keys, d or e] -> [b.., h, rows, e]. On an accelerator the kernel that takes
    float32, and a mask, takes no groups: torch would keep the scores (aten/src/ATen/native/transformers/cuda/
    sdp_utils.cpp). With repeated keys and values it runs (`make gpu PARTS=kernels` has both, in float32).
    """
    heads = q.shape[-3] if enable_gqa else k.shape[-3]
    if heads != k.shape[-3] and not takes_groups(q, attn_mask):
        k, v = (x.repeat_interleave(heads // x.shape[-3], -3) for x in (k, v))
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=k.shape[-3] != heads
    )


def grouped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = True, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """This rank's query heads against the key and value heads that they share, all of which it has.

    q S(heads) [b.., h/n, rows, d]; k, v R [b.., kv, keys, d or e] -> S(heads) [b.., h/n, rows, e]. Query head j uses
    key head j // (h / kv); n need not divide kv, nor kv n.
    """
    index, ways = index_over(axes)
    heads = q.shape[-3]
    group = heads * ways // k.shape[-3]
    first, last = index * heads // group, ((index + 1) * heads - 1) // group
    aligned = first == last or (heads % group == 0)
    if aligned:
        k, v = (x.narrow(-3, first, last + 1 - first) for x in (k, v))
    else:
        shared = (torch.arange(heads, device=k.device) + index * heads) // group
        k, v = (x.index_select(x.ndim - 3, shared) for x in (k, v))
    return grouped_query_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)


def causal_attention_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: None = None, dropout_p: float = 0.0, is_causal: bool = True, *,
    scale: float | None = None, enable_gqa: bool = False, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """This rank's rows of a causal attention: row i of the whole sees keys 0 … i.

    q S(rows) [b.., h, rows/n, d]; k, v R [b.., kv, keys, d or e] -> S(rows) [b.., h, rows/n, e]. Keys that none of the
    rows sees aren't read. In two blocks where a kernel takes these (``last_rows``).
    """
    index, _ = index_over(axes)
    rows, factor = q.shape[-2], 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    start = index * rows
    keys = min(start + rows, k.shape[-2])
    k, v = k.narrow(-2, 0, keys), v.narrow(-2, 0, keys)
    if dropout_p == 0 and keys == start + rows and takes_blocks(q, v, factor):
        return last_rows(q, k, v, factor)
    seen = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(start)
    return grouped_query_attention(q, k, v, seen, dropout_p, scale=scale, enable_gqa=enable_gqa)


def attention_with_dropout(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False, key: Tensor, call: int,
    dims: Sequence[Sequence[MeshAxis]] = (), microbatch_dim: int | None = None, microbatches: int = 1,
) -> Tensor:  # fmt: skip
    """Attention whose probabilities are dropped by ``random.dropout``, so that it equals one device's.

    Shapes as scaled_dot_product_attention's; the scores [b.., h, rows, keys] are materialised, since a fused kernel
    takes no mask of its dropout. ``dims`` speaks of the scores' dims.
    """
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = dropout(
        scores.softmax(-1), dropout_p, key=key, call=call, dims=dims, microbatch_dim=microbatch_dim,
        microbatches=microbatches,
    )  # fmt: skip
    return weights @ v
