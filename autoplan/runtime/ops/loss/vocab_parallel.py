"""Cross-entropy with the classes split over ranks, holding one tensor of the logits' size at a time.

The logits are never gathered (Shoeybi et al. 2019, section 3), and nothing of their size is kept beside them: of each
row its greatest logit, the sum of its exponentials and where its target stands. The backward makes the gradient from
the logits again, a few rows at a time, so that forward and backward together hold the gradient and a sixteenth of it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.collectives.result import cast
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
        ignored = target == ignore_index
        check_classes(target, logits.shape[-1] * ways, ignored, ignore_index)
        size, narrow = logits.shape[-1], logits.dtype in (torch.bfloat16, torch.float16)
        wide = torch.float32 if narrow else logits.dtype
        own_weights = weight[index * size : (index + 1) * size].to(wide) if weight is not None else None
        greatest = logits.amax(-1).to(wide)
        for axis in axes:
            greatest = all_reduce_max(greatest, axis, in_place=True)
        rows = (logits, greatest, *_local_targets(target, index, size))
        if _rows_at_once(logits) is None:
            sums = torch.stack(_sums(own_weights, bool(smoothing), *rows))
        else:
            sums = greatest.new_empty(3 if smoothing else 2, *greatest.shape)
            for some in _pieces(*rows, *sums.unbind()):
                for place, found in zip(some[4:], _sums(own_weights, bool(smoothing), *some[:4]), strict=True):
                    place.copy_(found)
        for axis in axes:
            sums = all_reduce(sums, axis, in_place=True)

        exponentials, own, *spreads = sums.unbind()
        log_sum = exponentials.log()
        losses = log_sum - own
        if smoothing or weight is not None:
            picked, spread = _weights_of(weight, target, ignored, size * ways, wide)
            losses = (1 - smoothing) * picked * losses
        if smoothing:
            losses = losses + smoothing / (size * ways) * (spread * log_sum - spreads[0])
        weighed = None if weight is None else target
        ctx.save_for_backward(logits, weighed, weight, total, ignored, *rows[1:], exponentials)
        ctx.given = smoothing, index, size * ways
        return cast(losses.masked_fill_(ignored, 0.0).sum() / total, logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        logits, weighed, weight, total, ignored, greatest, local, elsewhere, exponentials = ctx.saved_tensors
        smoothing, index, classes = ctx.given
        size, wide = logits.shape[-1], greatest.dtype
        scale = (gradient.to(wide) / total.to(wide)).expand(ignored.shape).masked_fill(ignored, 0.0)
        factor = hit = scale
        given, own_weights = [], None
        if smoothing or weight is not None:
            picked, spread = _weights_of(weight, weighed, ignored, classes, wide)
            hit = (1 - smoothing) * scale * picked
            flat = scale * (smoothing / classes)
            factor, given = hit + flat * spread, [flat] if smoothing else []
        if smoothing and weight is not None:
            own_weights = weight[index * size : (index + 1) * size].to(wide)
        if torch.compiler.is_compiling():
            # Else the forward would make the exponentials, which wait for no gradient then, and keep them: twice the
            # bytes of logits in 16 bits. Rows whose gradient is zero get zeros either way.
            greatest = greatest.masked_fill(factor == 0, math.inf)
        each = (greatest, factor / exponentials, hit.masked_fill(elsewhere, 0.0).neg_(), local, *given)
        if _rows_at_once(logits) is None:
            result = _gradient(own_weights, logits, *each).to(logits.dtype)
        else:
            result = torch.empty_like(logits)
            for out, x, *rows in _pieces(logits, *each, beside=(result,)):
                out.copy_(_gradient(own_weights, x, *rows))
        return result, None, None, None, None, None, None


def _rows_at_once(logits: Tensor) -> tuple[int, int] | None:
    """(the dim that has most rows, how many of them are taken at a time); None where all are. A compiler makes one
    kernel of all rows, which needs no pieces."""
    rows = logits.shape[:-1]
    if not rows or torch.compiler.is_compiling():
        return None
    dim = max(range(len(rows)), key=lambda d: rows[d])
    count = min(PIECES, rows[dim], logits.numel() * logits.element_size() // PIECE_BYTES)
    return None if count <= 1 else (dim, -(-rows[dim] // count))


def _pieces(logits: Tensor, *others: Tensor, beside: Sequence[Tensor] = ()) -> Iterator[list[Tensor]]:
    """A few rows of each at a time, or all: logits [.., v] and others [..]; ``beside``: of the logits' size, first."""
    tensors, cut = (*beside, logits, *others), _rows_at_once(logits)
    if cut is None:
        yield list(tensors)
        return
    dim, step = cut
    for start in range(0, logits.shape[dim], step):
        yield [t.narrow(dim, start, min(step, t.shape[dim] - start)) for t in tensors]


def _local_targets(target: Tensor, index: int, size: int) -> tuple[Tensor, Tensor]:
    """The target's place among this rank's classes, any of them where another rank has it; where another one has it."""
    local = target - index * size if index else target
    here = local.clamp(0, size - 1)
    return here, here != local


def _weights_of(
    weight: Tensor | None, target: Tensor, ignored: Tensor, classes: int, dtype: torch.dtype
) -> tuple[Tensor | float, Tensor | float]:
    """The weight of each row's target, and what all weights add up to."""
    if weight is None:
        return 1.0, float(classes)
    weight = weight.to(dtype)
    return weight[target.masked_fill(ignored, 0)], weight.sum()


def _sums(
    weights: Tensor | None, smoothed: bool, logits: Tensor, greatest: Tensor, local: Tensor, elsewhere: Tensor
) -> list[Tensor]:
    """Some rows' sum of exponentials, target's logit and, where labels are smoothed, (weighted) sum of logits, each
    less the greatest."""
    shifted = logits - greatest.unsqueeze(-1)  # wide: the greatest is
    own = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill_(elsewhere, 0.0)
    spread = [shifted.sum(-1) if weights is None else shifted @ weights] if smoothed else []
    return [shifted.exp_().sum(-1), own, *spread]


def _gradient(
    weights: Tensor | None, logits: Tensor, greatest: Tensor, factor: Tensor, missed: Tensor, local: Tensor,
    flat: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Of some rows; ``factor``: of the exponentials; ``missed``: what their targets' own classes lack; ``flat``: where
    labels are smoothed."""
    result = (logits - greatest.unsqueeze(-1)).exp_().mul_(factor.unsqueeze(-1))
    if torch.compiler.is_compiling():  # one kernel with what comes before and after; a scatter stands between two
        own = torch.arange(logits.shape[-1], device=logits.device) == local.unsqueeze(-1)
        result = result + torch.where(own, missed.unsqueeze(-1), 0.0)
    else:
        result.scatter_add_(-1, local.unsqueeze(-1), missed.unsqueeze(-1))
    if flat is not None and weights is not None:
        result.addcmul_(flat.unsqueeze(-1), weights, value=-1)
    elif flat is not None:
        result.sub_(flat.unsqueeze(-1))
    return result
