"""A causal attention of one rank's rows, in two blocks: over the keys before them, and over their own.

Under one mask over all of these keys an accelerator's kernel would take no shared keys, and compute what the mask
leaves out. So the flash kernel runs twice, without a mask, and the blocks are joined (``blocks``).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.runtime.collectives.result import cast
from autoplan.runtime.ops.attention.blocks import Sight, attend, attend_back, is_fused, join

ROWS = 2  # the dim of the sequence in [b, h, rows, d]


def takes_blocks(q: Tensor, v: Tensor, scale: float) -> bool:
    """Whether a fused kernel takes these operands block by block."""
    return q.ndim == v.ndim == 4 and is_fused(q, v, Sight(scale, True))


def last_rows(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [b, h, rows, d], k [b, kv, keys, d], v [b, kv, keys, e] -> [b, h, rows, e]: the last rows of a causal attention
    of as many rows as keys."""
    return _LastRows.apply(q, k, v, scale)


class _LastRows(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        before, own = split(k, v, q.shape[ROWS])
        found = attend(q, *own, Sight(scale, True))
        if before is not None:
            found = join(attend(q, *before, Sight(scale)), found)
        # row by row, as the kernel gives it and what joins its heads reads it
        out = cast(found[0], q.dtype).transpose(1, ROWS).contiguous().transpose(1, ROWS)
        ctx.save_for_backward(q, k, v, out, found[1])
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log = ctx.saved_tensors
        before, own = split(k, v, q.shape[ROWS])
        dq, *shares = attend_back(gradient, q, *own, out, log, Sight(ctx.scale, True))
        if before is not None:
            more, *earlier = attend_back(gradient, q, *before, out, log, Sight(ctx.scale))
            dq, shares = dq + more, [torch.cat(both, ROWS) for both in zip(earlier, shares, strict=True)]
        return *(cast(x, q.dtype) for x in (dq, *shares)), None


def split(k: Tensor, v: Tensor, rows: int) -> tuple[tuple[Tensor, Tensor] | None, tuple[Tensor, Tensor]]:
    """(keys and values before the last rows, where there are any; those of these rows)."""
    first = k.shape[ROWS] - rows
    before = (k.narrow(ROWS, 0, first), v.narrow(ROWS, 0, first)) if first else None
    return before, (k.narrow(ROWS, first, rows), v.narrow(ROWS, first, rows))
