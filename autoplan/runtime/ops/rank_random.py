"""Dropout by torch's own kernels, of which each rank draws its own part (``Training(randomness="per-rank")``).

Before a kernel draws, torch's generator is seeded by what the rank holds (``runtime.parallel.seeding``). What is drawn
depends on the plan, and isn't what one device draws.

A compiled segment can't seed between its kernels. There dropout hashes each element's place in the rank's part, which
compiles into the kernels around it, and attention draws from the seed that the segment begins with.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from autoplan.ops import dropout as hashed
from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.ops.attention.heads import grouped_query_attention
from autoplan.runtime.parallel.seeding import reseed, seed_of


def dropout_by_rank(
    x: Tensor, p: float, *, key: Tensor, call: int, axes: Sequence[MeshAxis] = (), each_microbatch: bool = True
) -> Tensor:
    """x with each element zeroed with probability p and the others divided by 1 - p; a mask of bytes is kept.

    key   the microbatch's row of ``step_keys``, int64 [2] or [1, 2], on the host
    call  the number of this dropout in the model, different for each
    axes  those that split x
    each_microbatch  whether microbatches have parts of x; False: all have the same x, and drop the same of it
    """
    if torch.compiler.is_compiling():
        there = key.view(-1).to(x.device, non_blocking=True)
        return _dropped_by_place(x, p, there, call, index_over(axes)[0], each_microbatch)
    reseed(x.device, seed_of(key, call, axes, each_microbatch))
    return torch.native_dropout(x, p, True)[0]


def attention_by_rank(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False, key: Tensor, call: int, axes: Sequence[MeshAxis] = (),
    each_microbatch: bool = True,
) -> Tensor:  # fmt: skip
    """scaled_dot_product_attention with its own dropout; ``axes`` split its scores, the rest is as of
    ``dropout_by_rank``."""
    if not torch.compiler.is_compiling():
        reseed(q.device, seed_of(key, call, axes, each_microbatch))
    return grouped_query_attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _dropped_by_place(x: Tensor, p: float, key: Tensor, call: int, place: int, each_microbatch: bool) -> Tensor:
    """The same by a hash, under a key in which the microbatch and the rank's place are mixed."""
    word = key[0] + place * hashed.ROW + (key[1] * hashed.HIGH if each_microbatch else 0)
    whole = hashed.Places(x.shape, (0,) * x.ndim, x.shape, (0,) * x.ndim)
    return hashed.dropout(x, p, torch.stack((hashed.mixed(word.to(torch.int32)).to(torch.int64), key[1])), call, whole)
