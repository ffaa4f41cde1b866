"""Normalisations: layer, rms and group norm stay whole; batch norm becomes one operator that updates its buffers."""

from collections.abc import Sequence

from autoplan.errors import TraceError
from autoplan.trace.canonical_forms import Builder, Ref, form


@form("aten.layer_norm.default")
def layer_norm(
    b: Builder, x: Ref, shape: Sequence[int], weight: Ref | None = None, bias: Ref | None = None, eps: float = 1e-5,
    *_: object,
) -> Ref:  # fmt: skip
    return b.emit("aten.layer_norm.default", x, tuple(shape), weight, bias, eps)


@form("aten.native_layer_norm.default")
def native_layer_norm(
    b: Builder, x: Ref, shape: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Ref | None, ...]:
    return layer_norm(b, x, shape, weight, bias, eps), None, None


@form("aten.rms_norm.default")
def rms_norm(b: Builder, x: Ref, shape: Sequence[int], weight: Ref | None = None, eps: float | None = None) -> Ref:
    return b.emit("aten.rms_norm.default", x, tuple(shape), weight, eps)


@form("aten.group_norm.default")
def group_norm(
    b: Builder, x: Ref, groups: int, weight: Ref | None = None, bias: Ref | None = None, eps: float = 1e-5, *_: object
) -> Ref:
    return b.emit("aten.group_norm.default", x, groups, weight, bias, eps)


@form("aten.native_group_norm.default")
def native_group_norm(
    b: Builder, x: Ref, weight: Ref | None, bias: Ref | None, n: int, c: int, hxw: int, groups: int, eps: float
) -> tuple[Ref | None, ...]:
    return group_norm(b, x, groups, weight, bias, eps), None, None


@form("aten.instance_norm.default")
def instance_norm(
    b: Builder, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref | None, variance: Ref | None,
    use_input_stats: bool, momentum: float, eps: float, *_: object,
) -> Ref:  # fmt: skip
    """A group norm whose groups are single channels; by its running statistics a batch norm that is evaluated."""
    if use_input_stats and mean is not None:
        raise TraceError(
            "instance norm with track_running_stats=True",
            "in training its statistics are means over the rows of the batch, which no rank has whole",
            "leave it out: they serve in evaluation alone",
        )
    if use_input_stats:
        return b.emit("aten.group_norm.default", x, b.shape(x)[1], weight, bias, eps)
    return one_batch_norm(b, x, weight, bias, mean, variance, False, momentum, eps)


@form("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.default")
def batch_norm(
    b: Builder, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref | None, variance: Ref | None, training: bool,
    momentum: float, eps: float,
) -> tuple[Ref | None, ...]:  # fmt: skip
    return one_batch_norm(b, x, weight, bias, mean, variance, training, momentum, eps), None, None, None, None


@form("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    b: Builder, x: Ref, weight: Ref | None, bias: Ref | None, training: bool, momentum: float, eps: float
) -> tuple[Ref | None, ...]:
    return one_batch_norm(b, x, weight, bias, None, None, True, momentum, eps), None, None


@form("aten._native_batch_norm_legit_no_training.default")
def batch_norm_evaluated(
    b: Builder, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref, variance: Ref, momentum: float, eps: float
) -> tuple[Ref | None, ...]:
    return one_batch_norm(b, x, weight, bias, mean, variance, False, momentum, eps), None, None


@form("aten.batch_norm.default")
def one_batch_norm(
    b: Builder, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref | None, variance: Ref | None, training: bool,
    momentum: float, eps: float, *_: object,
) -> Ref:  # fmt: skip
    """``num_batches_tracked`` is the sibling of the running mean, where the module counts at all."""
    tracked: Ref | None = None
    if training and mean is not None:
        name = mean.name.removesuffix("running_mean") + "num_batches_tracked"
        tracked = Ref(name) if name in b.types else None
    args = (x, weight, bias, mean, variance, tracked, training, momentum, eps)
    return b.emit("autoplan.batch_norm", *args, type=b.type(x))
