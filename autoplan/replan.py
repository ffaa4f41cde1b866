"""A plan asked for again: the same traced graph for another cluster, size, training or parallelism."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.cluster import ClusterSpec
from autoplan.compile import asked_of, check_arguments, compile_model
from autoplan.errors import ParallelismError
from autoplan.ir.randomness import with_randomness
from autoplan.ir.record import PlanRecord
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import Constraint
from autoplan.search.space.gradient_checks import without_unread
from autoplan.search.space.systems import resolve as resolve_parallelism
from autoplan.trace.passes.precision import computed_in, in_precision
from autoplan.trace.rescale import rescale


@dataclass(frozen=True)
class Change:
    """What is to be other than in a plan; None: as it was. The fields are ``Plan.what_if``'s arguments."""

    cluster_spec: ClusterSpec | str | Mapping | os.PathLike | None = None
    batch: int | None = None
    seq: int | None = None
    bandwidth: float | Mapping[str, float] | None = None
    parallelism: str | Parallelism | None = None
    constraints: Sequence[Constraint] | None = None
    training: Training | Inference | None = None
    effort: str | None = None


def replan(record: PlanRecord, change: Change) -> PlanRecord:
    """The plan of the same traced model for something else: see ``Plan.what_if``."""
    training = record.training if change.training is None else change.training
    constraints = record.asked.constraints if change.constraints is None else change.constraints
    check_arguments(training, constraints)
    constraints = tuple(constraints)
    check_same_trace(record.training, training)
    cluster = record.cluster if change.cluster_spec is None else ClusterSpec.of(change.cluster_spec)
    cluster = cluster if change.bandwidth is None else cluster.with_bandwidth(change.bandwidth)
    asked = replace(record.asked, constraints=constraints)
    if change.training is not None:
        asked = replace(asked, compile=training.compile)
    if change.parallelism is not None or change.effort is not None:
        request = record.asked.request if change.parallelism is None else change.parallelism
        pinned = resolve_parallelism(request, cluster)
        if change.training is None and isinstance(training, Training):
            training = without_unread(pinned, training)
        kept = replace(training, compile=asked.compile)
        asked = asked_of(request, constraints, kept, change.effort or asked.effort)
    model = record.model
    if change.training is not None:
        model = in_precision(model, training.precision)
    if isinstance(training, Training):
        model = with_randomness(model, training.randomness)
    rescaled = rescale(model, change.batch, change.seq)
    found = compile_model(rescaled, cluster, training, asked, record.init, record.start)
    return replace(found, evaluable=record.evaluable)


def check_same_trace(before: Training | Inference, after: Training | Inference) -> None:
    """Refuses what the traced graph itself would have to be another for."""
    remedy = "Trace the model again, with autoplan.parallelize"
    if type(before) is not type(after):
        raise ParallelismError(
            f"training={type(after).__name__}()", f"the model was traced for {type(before).__name__}()", remedy
        )
    if after.microbatch_statistics and not before.microbatch_statistics:
        cause = "whether one microbatch computes as the whole batch is shown where the model is traced"
        raise ParallelismError("statistics='microbatch'", cause, remedy)
    for name in ("expert_capacity", "expert_dropping"):
        if (limit := getattr(after, name, None)) != getattr(before, name, None):
            raise ParallelismError(f"{name}={limit!r}", "which choices are dropped is part of the traced graph", remedy)
    dtypes = computed_in(before.precision), computed_in(after.precision)
    if dtypes[0] != dtypes[1] and dtypes != ("float32", "float64"):
        raise ParallelismError(f"precision={after.precision!r}", f"the model was traced in {dtypes[0]}", remedy)
