"""A traced model and what is asked of it -> a plan; and a plan asked again without tracing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.cluster import ClusterSpec
from autoplan.errors import NoRuleError, ParallelismError
from autoplan.ir.graph import Model, Node, TensorType
from autoplan.ir.record import Asked, PlanRecord
from autoplan.options import PRECISIONS, Inference, Parallelism, Training, check_effort
from autoplan.placing import searched
from autoplan.rules.check import suggested_rule
from autoplan.rules.constraints import Constraint, accept_whole
from autoplan.rules.extensions import extensions_of
from autoplan.rules.faults import check_users_rule
from autoplan.rules.registry import WHOLE, registered
from autoplan.runtime.optim.grouping import check_flat, resolved
from autoplan.runtime.optim.lr_scheduler import check_schedule
from autoplan.runtime.optim.optimizer_options import check_optimizer
from autoplan.search.space.batch_reductions import with_totals
from autoplan.search.space.systems import read as read_parallelism
from autoplan.search.space.systems import resolve as resolve_parallelism
from autoplan.trace.initialise import InitRecipe, Start
from autoplan.trace.passes.precision import computed_in, in_precision, types_of
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


def asked_of(
    parallelism: str | Parallelism, constraints: Sequence[Constraint], training: Training | Inference, effort: str
) -> Asked:
    """What a user pins, as it is recorded. ParallelismError for an effort that is none."""
    check_effort(effort)
    said = read_parallelism(parallelism) if isinstance(parallelism, str) else parallelism
    system = said if isinstance(said, str) and said != "auto" else ""
    pinned = said if isinstance(said, Parallelism) else Parallelism()
    return Asked(system, pinned, tuple(constraints), effort, training.compile)


def planned(
    model: Model,
    cluster: ClusterSpec,
    training: Training | Inference,
    asked: Asked,
    init: InitRecipe | None,
    start: Start,
) -> PlanRecord:
    """The plan of a traced model, in the precision of ``training``.

    Raises ParallelismError, DoesNotFitError or NoRuleError where there is none.
    """
    check_precision(training.precision, cluster)
    pinned = resolve_parallelism(asked.request, cluster)
    training = as_run(replace(training, compile=asked.compile), cluster)
    model = accept_whole(model, asked.constraints)
    check_ruled(model)
    if isinstance(training, Training):
        training, model = resolved(training, model), with_totals(model)
    model, (chosen, alternatives, report) = searched(model, cluster, training, pinned, asked)
    if isinstance(training, Training):
        check_flat(training, model)
    extensions = extensions_of(model)
    record = PlanRecord(cluster, training, model, chosen, alternatives, report, init, asked, extensions, start=start)
    record.lowered()
    return record


def again(record: PlanRecord, change: Change) -> PlanRecord:
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
        resolve_parallelism(request, cluster)
        kept = replace(training, compile=asked.compile)
        asked = asked_of(request, constraints, kept, change.effort or asked.effort)
    model = in_precision(record.model, training.precision) if change.training is not None else record.model
    rescaled = rescale(model, change.batch, change.seq)
    found = planned(rescaled, cluster, training, asked, record.init, record.start)
    return replace(found, evaluable=record.evaluable)


def check_same_trace(before: Training | Inference, after: Training | Inference) -> None:
    """Refuses what the traced graph itself would have to be another for."""
    remedy = "Trace the model again, with autoplan.parallelize"
    if type(before) is not type(after):
        raise ParallelismError(
            f"training={type(after).__name__}()", f"the model was traced for {type(before).__name__}()", remedy
        )
    dtypes = computed_in(before.precision), computed_in(after.precision)
    if dtypes[0] != dtypes[1] and dtypes != ("float32", "float64"):
        raise ParallelismError(f"precision={after.precision!r}", f"the model was traced in {dtypes[0]}", remedy)


def check_arguments(training: Training | Inference | None, constraints: Sequence[Constraint]) -> None:
    """Refuses, before anything is traced, what can't be planned or what no exported program could run."""
    if training is not None and not isinstance(training, Training | Inference):
        raise ParallelismError(
            f"training={training!r}", "expected a Training or Inference", "give autoplan.Training(...) or Inference()"
        )
    if not isinstance(constraints, tuple | list):  # what can be read but once would be empty when it is asked again
        given = f"constraints={constraints!r}"
        raise ParallelismError(given, "expected a list", "give a list, such as [autoplan.pin(...)]")
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise ParallelismError(
                f"constraint {constraint!r}", "expected a Constraint",
                "use autoplan.pin, autoplan.forbid or autoplan.replicated",
            )
    if isinstance(training, Training):
        check_optimizer(training)
        check_schedule(training)


def check_precision(precision: str, cluster: ClusterSpec) -> None:
    """Refuses a precision that the cluster's device doesn't multiply in: it has no price there."""
    device, _ = cluster.profile()
    peaks = device.peak_flops_per_s
    if computed_in(precision) not in peaks:
        known = [name for name in PRECISIONS if computed_in(name) in peaks]
        cause = f"{device.name} has no peak for {computed_in(precision)}"
        raise ParallelismError(f"precision={precision!r}", cause, f"use one of {', '.join(known)}")


def check_ruled(model: Model) -> None:
    """NoRuleError for operators that nobody has a rule for, each named once, with a guess at the first one's; RuleError
    where a user's rule is none."""
    lacking: dict[str, tuple[Node, Mapping[str, TensorType]]] = {}
    places = [(model.constants, types_of(model)), *((block.nodes, block.types()) for block in model.blocks)]
    for nodes, types in places:
        for node in nodes:
            check_users_rule(node, types)
            if node.op not in registered() and not node.op.startswith(WHOLE):
                lacking.setdefault(node.op, (node, types))
    if not lacking:
        return
    (op, (node, at)), *others = lacking.items()
    found, more = suggested_rule(node, at), "".join(f" and {other}" for other, _ in others)
    name = op.split(".")[1]
    if found is None:
        guess = f"def {name}_rule(x, ...): return autoplan.Rule('b n -> b n', whole='n')"
    else:
        by = "values on small tensors" if found.tried else "shapes alone"
        guess = f"def {name}_rule(*args, **kwargs): return autoplan.{found}; this is a guess from its {by}, to be "
        guess += "proved by autoplan.check_rule"
    raise NoRuleError(
        f"{op}{more}",
        f"this operator, run by module {node.module or 'the root'!r}, has no rule that says how it may be split",
        f"register one: @autoplan.rule({op!r}) {guess}; or accept it as replicated with "
        f"constraints=[autoplan.replicated({op!r})]",
    )


def as_run(training: Training | Inference, cluster: ClusterSpec) -> Training | Inference:
    """What is asked for, less the compilation where a device's programs run eagerly: priced is what runs."""
    return training if cluster.profile()[0].compiles else replace(training, compile=False)


def default_training(cluster: ClusterSpec) -> Training:
    """AdamW in the precision that a device is made for."""
    return Training(precision=cluster.default_precision)
