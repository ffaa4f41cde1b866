"""Losses: cross-entropy divided by a count that is known before the first microbatch; the others spelled out."""

from autoplan.errors import TraceError
from autoplan.ir.graph import TensorType
from autoplan.trace.builder import HALVES
from autoplan.trace.canonical_forms import Builder, Ref, form
from autoplan.trace.forms.nn.penalties import (
    MEAN,
    NONE,
    SUM,
    along_classes,
    class_dim,
    negative_likelihood,
    row_losses,
    soft_cross_entropy,
)


@form("aten.cross_entropy_loss.default")
def cross_entropy(
    b: Builder, logits: Ref, target: Ref, weight: Ref | None = None, reduction: int = MEAN, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Ref:  # fmt: skip
    """No reduction beside smoothed labels is kept as it is, so that it is named as an operator without a rule."""
    if b.type(target).floating:
        return soft_cross_entropy(b, logits, target, weight, reduction, label_smoothing)
    if reduction == NONE and label_smoothing == 0:
        likely = b.emit("aten.log_softmax.int", logits, class_dim(b, logits))
        if weight is not None:
            likely = b.emit("aten.mul.Tensor", likely, along_classes(b, logits, weight))
        return row_losses(b, likely, target, ignore_index)
    if reduction not in (MEAN, SUM):
        as_it_was = (logits, target, weight, reduction, ignore_index, label_smoothing)
        return b.emit("aten.cross_entropy_loss.default", *as_it_was)
    logits, target = unflattened(b, *class_last(b, logits, target))
    if weight is not None:
        return weighted(b, logits, target, weight, reduction, ignore_index, float(label_smoothing))
    if reduction == MEAN:
        count = b.emit("autoplan.count_valid", target, ignore_index, type=TensorType((), "int64"), hint="valid_targets")
    else:
        count = b.full((), 1, "int64")
    args = (logits, target, count, ignore_index, float(label_smoothing))
    return b.emit("autoplan.cross_entropy", *args, type=TensorType((), b.type(logits).dtype), hint="loss")


def weighted(
    b: Builder, logits: Ref, target: Ref, weight: Ref, reduction: int, ignore_index: int, label_smoothing: float
) -> Ref:
    """Classes with weights: a mean is divided by the weights of all valid targets, which their counts tell."""
    classes = b.shape(logits)[-1]
    counts = None
    if reduction == MEAN:
        kind = TensorType((classes,), "int64")
        counts = b.emit("autoplan.count_classes", target, classes, ignore_index, type=kind, hint="valid_targets")
    args = (logits, target, weight, counts, ignore_index, label_smoothing)
    return b.emit("autoplan.weighted_cross_entropy", *args, type=TensorType((), b.type(logits).dtype), hint="loss")


def class_last(b: Builder, logits: Ref, target: Ref) -> tuple[Ref, Ref]:
    """F.cross_entropy has its classes in dim 1; here they come last."""
    rank = len(b.shape(logits))
    return b.permute(logits, (*(d for d in range(rank) if d != 1), 1)) if rank > 2 else logits, target


def unflattened(b: Builder, logits: Ref, target: Ref) -> tuple[Ref, Ref]:
    """Undoes the flattening of batch and sequence in front of the loss."""
    before = b.maker(logits, "aten.reshape.default")
    if before is None:
        return logits, target
    source = before.args[0]
    assert isinstance(source, Ref)
    if b.shape(source)[-1] != b.shape(logits)[-1]:
        return logits, target
    return source, b.reshape(target, b.shape(source)[:-1])


@form("aten.nll_loss_nd.default", "aten.nll_loss.default")
def nll_loss(
    b: Builder, x: Ref, target: Ref, weight: Ref | None = None, reduction: int = MEAN, ignore_index: int = -100
) -> Ref:
    """Of a log-softmax it is a cross-entropy."""
    before = b.maker(x, "aten.log_softmax.int")
    if before is None or before.args[1] != min(1, len(b.shape(x)) - 1):
        if weight is None:
            return negative_likelihood(b, x, target, reduction, ignore_index)
        return b.emit("aten.nll_loss_nd.default", x, target, weight, reduction, ignore_index)
    logits = before.args[0]
    assert isinstance(logits, Ref)
    return cross_entropy(b, logits, target, weight, reduction, ignore_index)


@form("autoplan.ctc_losses.default")
def ctc_losses(
    b: Builder, log_probs: Ref, targets: Ref, input_lengths: Ref, target_lengths: Ref, blank: int, zero_infinity: bool,
    valid: Ref | None = None,
) -> Ref:  # fmt: skip
    """valid  which targets count, of a mask that the model chose them by; None: the first of each row"""
    if len(b.shape(targets)) != 2:
        cause = "the targets of all rows stand one after the other, and where a row's begin depends on their values"
        raise TraceError("F.ctc_loss", cause, "give targets of [rows, longest], with their lengths")
    if b.type(log_probs).dtype in HALVES:  # of which torch has no such loss: autocast widens them, too
        log_probs = b.cast(log_probs, "float32")
    kind = TensorType(b.shape(log_probs)[1:2], b.type(log_probs).dtype)
    args = (log_probs, targets, valid, input_lengths, target_lengths, blank, zero_infinity)
    return b.emit("autoplan.ctc_losses", *args, type=kind)
