"""Cross-entropy with the classes split over ranks, holding one tensor of the logits' size at a time.

The logits are never gathered (Shoeybi et al. 2019, section 3), and nothing of their size is kept beside them: of each
row its greatest logit and the logarithm of its sum. The backward makes the gradient from the logits again, a few rows
at a time, so that forward and backward together hold the gradient and a sixteenth of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.collectives.typed import all_reduce, all_reduce_max
from autoplan.runtime.ops.embedding.ranges import check_classes

PIECES = 16  # that rows are taken in
PIECE_BYTES = 1 << 19  # which is not worth cutting: kernels take as long as their calls


def vocab_parallel_cross_entropy(
    logits: Tensor, target: Tensor, count: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, *,
    axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """``cross_entropy`` from this rank's slice of the classes: logits S(last) [.., v/n], target R [..], count R [] ->
    I [].

    Two all-reduces over [..]: the greatest logit; then the sum of exponentials, the target's logit (and the sum of
    logits where labels are smoothed), stacked. The backward needs none.
    """
    return _VocabParallel.apply(logits, target, None, count, ignore_index, label_smoothing, tuple(axes))


def vocab_parallel_weighted_cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor, counts: Tensor | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """``weighted_cross_entropy`` from this rank's slice of the classes: logits S(last) [.., v/n]; target [..], weight
    and counts [v] R -> I []. Collectives as above."""
    total = torch.ones((), dtype=weight.dtype, device=weight.device) if counts is None else (weight * counts).sum()
    return _VocabParallel.apply(logits, target, weight, total, ignore_index, label_smoothing, tuple(axes))


class _VocabParallel(Function):
    """Of a valid row with logits x, target t, class weights w (1 where there are none), smoothing s of C classes:

        loss       (1 - s) w_t (log Σ exp x - x_t) + s/C (Σ w log Σ exp x - Σ w x)
        gradient   softmax(x) ((1 - s) w_t + s/C Σ w) - (1 - s) w_t [c = t] - s/C w_c
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, weight: Tensor | None, total: Tensor, ignore_index: int,
        smoothing: float, axes: tuple[MeshAxis, ...],
    ) -> Tensor:  # fmt: skip
        index, ways = index_over(axes)
        check_classes(target, logits.shape[-1] * ways, ignore_index)
        size, narrow = logits.shape[-1], logits.dtype in (torch.bfloat16, torch.float16)
        wide = torch.float32 if narrow else logits.dtype
        own_weights = weight[index * size : (index + 1) * size].to(wide) if weight is not None else None
        greatest = logits.amax(-1).to(wide)
        for axis in axes:
            greatest = all_reduce_max(greatest, axis)
        sums = greatest.new_empty(3 if smoothing else 2, *greatest.shape)
        local, mine = _local_targets(target, index, size)
        for rows in _pieces(logits, greatest, local, mine, *sums):
            _sum_up(own_weights, *rows)
        for axis in axes:
            sums = all_reduce(sums, axis)

        log_sum, valid = sums[0].log(), target != ignore_index
        picked, spread = _weights_of(weight, target, valid, size * ways, wide)
        losses = (1 - smoothing) * picked * (log_sum - sums[1])
        if smoothing:
            losses = losses + smoothing / (size * ways) * (spread * log_sum - sums[2])
        ctx.save_for_backward(logits, target, weight, total, greatest, log_sum)
        ctx.given = ignore_index, smoothing, index, size * ways
        return (losses.masked_fill(~valid, 0.0).sum() / total).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        logits, target, weight, total, greatest, log_sum = ctx.saved_tensors
        ignore_index, smoothing, index, classes = ctx.given
        size, wide, valid = logits.shape[-1], greatest.dtype, target != ignore_index
        picked, spread = _weights_of(weight, target, valid, classes, wide)
        scale = (gradient.to(wide) / total.to(wide)) * valid
        flat = scale * (smoothing / classes)
        hit = (1 - smoothing) * scale * picked
        local, mine = _local_targets(target, index, size)
        own_weights = weight[index * size : (index + 1) * size].to(wide) if weight is not None else None
        result = torch.empty_like(logits)
        each = (greatest, log_sum, hit + flat * spread, hit * mine, local, flat)
        for out, x, *rows in _pieces(result, logits, *each):
            out.copy_(_gradient(own_weights if smoothing else None, bool(smoothing), x, *rows))
        return result, None, None, None, None, None, None


def _pieces(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """A few rows of each at a time: tensors [.., v] or [..], the first of which is of the logits' size. A compiler
    makes one kernel of all rows, which needs no pieces."""
    first = tensors[0]
    rows = first.shape[:-1]
    if not rows:
        yield [t.unsqueeze(0) for t in tensors]
        return
    dim = max(range(len(rows)), key=lambda d: rows[d])
    count = min(PIECES, rows[dim], max(1, first.numel() * first.element_size() // PIECE_BYTES))
    step = rows[dim] if torch.compiler.is_compiling() else -(-rows[dim] // max(1, count))
    for start in range(0, rows[dim], max(1, step)):
        yield [t.narrow(dim, start, min(step, rows[dim] - start)) for t in tensors]


def _local_targets(target: Tensor, index: int, size: int) -> tuple[Tensor, Tensor]:
    """The target's place among this rank's classes, 0 where another rank has it; where this one has it."""
    local = target - index * size
    mine = (local >= 0) & (local < size)
    return local.masked_fill_(~mine, 0), mine


def _weights_of(
    weight: Tensor | None, target: Tensor, valid: Tensor, classes: int, dtype: torch.dtype
) -> tuple[Tensor | float, Tensor | float]:
    """The weight of each row's target, and what all weights add up to."""
    if weight is None:
        return 1.0, float(classes)
    weight = weight.to(dtype)
    return weight[target.masked_fill(~valid, 0)], weight.sum()


def _sum_up(
    weights: Tensor | None, logits: Tensor, greatest: Tensor, local: Tensor, mine: Tensor, total: Tensor, own: Tensor,
    *rest: Tensor,
) -> None:  # fmt: skip
    """Fills in some rows' sum of exponentials, target's logit and, where labels are smoothed, (weighted) sum of
    logits, each less the greatest."""
    shifted = logits - greatest.unsqueeze(-1)  # wide: the greatest is
    own.copy_(shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(~mine, 0.0))
    if rest:
        rest[0].copy_(shifted.sum(-1) if weights is None else shifted @ weights)
    total.copy_(shifted.exp_().sum(-1))


def _gradient(
    weights: Tensor | None, smoothed: bool, logits: Tensor, greatest: Tensor, log_sum: Tensor, factor: Tensor,
    hit: Tensor, local: Tensor, flat: Tensor,
) -> Tensor:  # fmt: skip
    """Of some rows."""
    result = (logits - greatest.unsqueeze(-1)).sub_(log_sum.unsqueeze(-1)).exp_().mul_(factor.unsqueeze(-1))
    result.scatter_add_(-1, local.unsqueeze(-1), -hit.unsqueeze(-1))
    if weights is not None:
        result.addcmul_(flat.unsqueeze(-1), weights, value=-1)
    elif smoothed:
        result.sub_(flat.unsqueeze(-1))
    return result
