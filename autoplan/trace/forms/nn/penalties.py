"""Losses of single elements or rows, and their sum or mean."""

from autoplan.ir.graph import TensorType
from autoplan.trace.canonical_forms import Builder, Ref, form

NONE, MEAN, SUM = 0, 1, 2  # ATen's enumeration of reductions


def reduced(b: Builder, x: Ref, reduction: int) -> Ref:
    if reduction == MEAN:
        return b.emit("aten.mean.default", x)
    return b.emit("aten.sum.default", x) if reduction == SUM else x


@form("aten.mse_loss.default")
def mse_loss(b: Builder, x: Ref, y: Ref, reduction: int = MEAN) -> Ref:
    return reduced(b, b.emit("aten.pow.Tensor_Scalar", b.emit("aten.sub.Tensor", x, y), 2), reduction)


@form("aten.l1_loss.default")
def l1_loss(b: Builder, x: Ref, y: Ref, reduction: int = MEAN) -> Ref:
    return reduced(b, b.emit("aten.abs.default", b.emit("aten.sub.Tensor", x, y)), reduction)


@form("aten.smooth_l1_loss.default")
def smooth_l1_loss(b: Builder, x: Ref, y: Ref, reduction: int = MEAN, beta: float = 1.0) -> Ref:
    return reduced(b, b.emit("aten.smooth_l1_loss.default", x, y, NONE, beta), reduction)


@form("aten.huber_loss.default")
def huber_loss(b: Builder, x: Ref, y: Ref, reduction: int = MEAN, delta: float = 1.0) -> Ref:
    return reduced(b, b.emit("aten.huber_loss.default", x, y, NONE, delta), reduction)


@form("aten.binary_cross_entropy.default")
def binary_cross_entropy(b: Builder, x: Ref, y: Ref, weight: Ref | None = None, reduction: int = MEAN) -> Ref:
    return reduced(b, b.emit("aten.binary_cross_entropy.default", x, y, weight, NONE), reduction)


@form("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    b: Builder, x: Ref, y: Ref, weight: Ref | None = None, positive: Ref | None = None, reduction: int = MEAN
) -> Ref:
    losses = b.emit("aten.binary_cross_entropy_with_logits.default", x, y, weight, positive, NONE)
    return reduced(b, losses, reduction)


def class_dim(b: Builder, x: Ref) -> int:
    """torch has the classes of [b, c, ..] in dim 1, those of a single row in dim 0."""
    return min(1, len(b.shape(x)) - 1)


def soft_cross_entropy(
    b: Builder, logits: Ref, target: Ref, weight: Ref | None, reduction: int, label_smoothing: float
) -> Ref:
    """Targets that are shares of the classes; the mean is over rows."""
    dim = class_dim(b, logits)
    if label_smoothing > 0:
        share = label_smoothing / b.shape(logits)[dim]
        target = b.emit("aten.add.Tensor", b.emit("aten.mul.Tensor", target, 1 - label_smoothing), share)
    if weight is not None:
        target = b.emit("aten.mul.Tensor", target, along_classes(b, logits, weight))
    likely = b.emit("aten.mul.Tensor", b.emit("aten.log_softmax.int", logits, dim), target)
    return reduced(b, b.emit("aten.neg.default", b.emit("aten.sum.dim_IntList", likely, (dim,), False)), reduction)


def along_classes(b: Builder, x: Ref, weight: Ref) -> Ref:
    dim = class_dim(b, x)
    return b.reshape(weight, tuple(size if d == dim else 1 for d, size in enumerate(b.shape(x))))


def row_losses(b: Builder, x: Ref, target: Ref, ignore_index: int) -> Ref:
    """-x at each row's class, zero where that is to be ignored."""
    dim = class_dim(b, x)
    ignored = b.emit("aten.eq.Scalar", target, ignore_index)
    index = b.emit("aten.unsqueeze.default", b.emit("aten.masked_fill.Scalar", target, ignored, 0), dim)
    at_class = b.emit("aten.squeeze.dim", b.emit("aten.gather.default", x, dim, index), dim)
    return b.emit("aten.masked_fill.Scalar", b.emit("aten.neg.default", at_class), ignored, 0.0)


def negative_likelihood(b: Builder, x: Ref, target: Ref, reduction: int, ignore_index: int) -> Ref:
    """Of any log-probabilities; the mean is over the targets that are valid, counted before the first microbatch."""
    losses = row_losses(b, x, target, ignore_index)
    if reduction != MEAN:
        return reduced(b, losses, reduction)
    count = b.emit("autoplan.count_valid", target, ignore_index, type=TensorType((), "int64"), hint="valid_targets")
    return b.emit("aten.div.Tensor", b.emit("aten.sum.default", losses), count)
