"""An attention block by block: some queries against some of the keys they see, and such blocks joined.

A block gives its result and, for each query, the logarithm of the sum of its exponentiated scores. By these the blocks
of different keys are joined into the attention over all of them, exactly (the online softmax: Milakov and Gimelshein
2018; Liu et al. 2023, section 3). From the whole's result and logarithm each block gives its summand of every
gradient (Dao 2023, section 3.1.2).

Shapes: q [b, h, rows, d], k [b, kv, keys, d], v [b, kv, keys, e], a mask, true where a query sees a key, [b or 1,
h or 1, rows or 1, keys]; a result [b, h, rows, e], its logarithm [b, h, rows]. Query head j has key head j // (h / kv).
Results and gradients are in the dtype in which they are summed up: float32, or float64 for operands in float64.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# The fused kernels that return the logarithm beside the result have no public name: ``scaled_dot_product_attention``
# drops it, and ``flex_attention``, which can return it, is slow where it isn't compiled. torch's own context parallel
# calls these.
_aten = torch.ops.aten
FLASH_HEAD = 256  # the largest head dim of the flash kernels on CUDA, which take multiples of 8


@dataclass(frozen=True)
class Sight:
    """Which keys a block's queries see: all, those up to the query's own place, or those of a mask.

    scale  that scores are multiplied by
    """

    scale: float
    is_causal: bool = False
    mask: Tensor | None = None


Joined = tuple[Tensor, Tensor]
"""A result and its logarithm."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which blocks are summed up."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Joined:
    """One block. The fused kernels take keys and values that query heads share as they are."""
    fused = kernel(q, v, sight)
    if fused == "cpu":
        out, log = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, sight.is_causal, scale=sight.scale)
        return out.to(wide(q.dtype)), log.contiguous()
    if fused == "cuda":
        out, log, *_ = _aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, sight.is_causal, return_debug_mask=False, scale=sight.scale
        )
        return out.to(wide(q.dtype)), log
    k, v = for_heads(k, q.shape[1]), for_heads(v, q.shape[1])
    scores = scores_of(q, k, sight)
    log = scores.logsumexp(-1)
    return weights_of(scores, log) @ v.to(scores.dtype), log


def attend_back(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log: Tensor, sight: Sight
) -> tuple[Tensor, Tensor, Tensor]:
    """The block's summands of the gradients of q, k and v.

    gradient, out, log  of the attention over all keys; out in q's dtype
    """
    dtype, fused = wide(q.dtype), kernel(q, v, sight)
    if fused == "cpu":
        back = _aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = back(gradient, q, k, v, out, log, 0.0, sight.is_causal, scale=sight.scale)
    elif fused == "cuda":
        found = flash_back(gradient, q, k, v, out, log, sight)
    else:
        found = by_products(gradient, q, k, v, out, log, sight)
    dq, dk, dv = (x.to(dtype) for x in found)
    return dq, dk, dv


def flash_back(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log: Tensor, sight: Sight
) -> tuple[Tensor, Tensor, Tensor]:
    """By the flash kernel on CUDA; nothing is dropped, so that it reads none of the random state that it is given."""
    state = torch.empty(2, dtype=torch.uint64, device=q.device)
    back = _aten._scaled_dot_product_flash_attention_backward
    rows, keys = q.shape[2], k.shape[2]
    return back(
        gradient, q, k, v, out, log, None, None, rows, keys, 0.0, sight.is_causal, state, state[:0], scale=sight.scale
    )


def by_products(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log: Tensor, sight: Sight
) -> tuple[Tensor, Tensor, Tensor]:
    """By the products: with P the weights, dV = Pᵀ dO, dS = P (dO Vᵀ − rowsum(dO O)), dQ = dS K, dK = dSᵀ Q; of keys
    and values summed over the heads that share them."""
    dtype, kv = wide(q.dtype), k.shape[1]
    k, v = for_heads(k, q.shape[1]), for_heads(v, q.shape[1])
    weights = weights_of(scores_of(q, k, sight), log)
    gradient, out, q, k, v = (x.to(dtype) for x in (gradient, out, q, k, v))
    share = gradient @ v.transpose(-2, -1) - (gradient * out).sum(-1, keepdim=True)
    scores = weights * share * sight.scale
    dk, dv = scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ gradient
    return scores @ k, summed_over_groups(dk, kv), summed_over_groups(dv, kv)


def join(one: Joined, other: Joined) -> Joined:
    """Two blocks of the same queries over different keys. A query that sees no key has zeros and minus infinity."""
    log = torch.logaddexp(one[1], other[1])
    shares = [torch.exp(each - log).masked_fill(log == -math.inf, 0.0).unsqueeze(-1) for _, each in (one, other)]
    return one[0] * shares[0] + other[0] * shares[1], log


def kernel(q: Tensor, v: Tensor, sight: Sight) -> str:
    """The fused kernel that takes a block where these tensors are, as ``kernel_on``."""
    return kernel_on(q.device.type, q, v, sight)


def is_fused(q: Tensor, v: Tensor, sight: Sight) -> bool:
    """Whether there is one."""
    return kernel(q, v, sight) != ""


def kernel_on(device: str, q: Tensor, v: Tensor, sight: Sight) -> str:
    """The fused kernel that a type of device has for a block: "cpu", "cuda", or "" for none. Without a mask, heads of
    one size."""
    head = q.shape[-1]
    if sight.mask is not None or v.shape[-1] != head:
        return ""
    if device == "cpu":
        return "cpu"
    half = q.dtype in (torch.bfloat16, torch.float16)
    return "cuda" if device == "cuda" and half and head <= FLASH_HEAD and head % 8 == 0 else ""


def scores_of(q: Tensor, k: Tensor, sight: Sight) -> Tensor:
    """[b, h, rows, keys], minus infinity where a query doesn't see a key."""
    dtype = wide(q.dtype)
    scores = q.to(dtype) @ k.to(dtype).transpose(-2, -1) * sight.scale
    seen = sight.mask
    if sight.is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores if seen is None else scores.masked_fill(~seen, -math.inf)


def weights_of(scores: Tensor, log: Tensor) -> Tensor:
    """exp(scores − log), zeros for a query that sees no key."""
    return torch.exp(scores - log.masked_fill(log == -math.inf, 0.0).unsqueeze(-1))


def for_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values once for each query head."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def summed_over_groups(x: Tensor, kv: int) -> Tensor:
    """Gradients of keys or values, summed over the query heads that share them."""
    return x if x.shape[1] == kv else x.unflatten(1, (kv, -1)).sum(2)
