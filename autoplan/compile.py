"""The passes that make a plan of a module, in order:

    trace -> precision -> check rules -> batch moves -> tables -> search -> lower -> typecheck -> record

``traced_model`` is the first two, which alone look at the module; ``compile_model`` is the rest. A plan that is asked
for again (``autoplan.replan``) enters at the second. The forward alone of a training plan (``autoplan.evaluation``)
takes the traced graph and a choice, and enters at lower.

One way leads back up: an export traces the module again at other sizes, and compares (``evaluation.proof``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from autoplan.arguments.values import check_effort
from autoplan.cluster import ClusterSpec
from autoplan.errors import InputsError, ParallelismError
from autoplan.evaluation.proof import Retrace, with_rows
from autoplan.ir.graph import Model, batch_rows
from autoplan.ir.randomness import with_randomness
from autoplan.ir.record import Asked, PlanRecord
from autoplan.ir.start import InitRecipe, Start
from autoplan.lower.after_search import typed_program
from autoplan.lower.one_seed import check_one_seed
from autoplan.models.inputs import Inputs
from autoplan.option_values import ELEMENTWISE, PRECISIONS
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.check import check_rules
from autoplan.rules.constraints import Constraint, accept_whole
from autoplan.rules.extensions import extensions_of
from autoplan.rules.nn.expert_capacity import with_capacity
from autoplan.runtime.optim.lr_scheduler import check_schedule
from autoplan.runtime.optim.optimizer_options import check_optimizer
from autoplan.runtime.optim.parameter_group import check_flat, resolved_groups
from autoplan.search.space.batch_moves import with_batch_moves
from autoplan.search.space.gradient_checks import check_read
from autoplan.search.space.systems import read as read_parallelism
from autoplan.search.space.systems import resolve as resolve_parallelism
from autoplan.search.tables.placed_search import search_with_tables
from autoplan.trace.checks.input_dtypes import check_dtypes, stored_notes
from autoplan.trace.checks.rows import number_of_rows
from autoplan.trace.passes.precision import compute_dtype, computed_in, in_precision
from autoplan.trace.passes.stacked_weights import with_stacked_weights
from autoplan.trace.pipeline import trace


def traced_model(
    module: nn.Module, inputs: Inputs, loss_fn: Callable | None, training: Training | Inference,
    evaluated: bool = False,
) -> Model:  # fmt: skip
    """The module's graph in a precision. InputsError where a loss isn't one number, or the module takes other dtypes.

    evaluated  a training plan's loss as ``module.eval()`` computes it
    """
    check_dtypes(module, inputs, loss_fn, training.precision)
    is_training, dtype = isinstance(training, Training), compute_dtype(training.precision)
    model = trace(module, inputs, loss_fn=loss_fn, training=is_training, dtype=dtype, evaluated=evaluated)
    if not isinstance(training, Training) or {*training.optimizers} <= {*ELEMENTWISE}:
        model = with_stacked_weights(model)
    model = with_rounded_noted(in_precision(model, training.precision), training.precision)
    model = replace(model, notes=(*model.notes, *stored_notes(module, training.precision)))
    if isinstance(training, Training):
        model = with_randomness(model, training.randomness)
        model = with_capacity(model, training.expert_capacity, training.expert_dropping)
    elif loss_fn is not None:
        model = replace(model, notes=(*model.notes, "loss_fn isn't computed: Inference() plans the forward alone"))
    check_result(model, is_training)
    if isinstance(training, Training) and training.microbatch_statistics and not evaluated:
        plain = replace(training, statistics="batch")
        check_apart(model, inputs, lambda other: traced_model(module, other, loss_fn, plain))
    return model


def with_rounded_noted(model: Model, precision: str) -> Model:
    """The model with a note of its frozen parameters, where they are kept in halves."""
    frozen = [parameter.source for parameter in model.parameters if not parameter.trainable]
    if not frozen or not precision.endswith("-mixed"):
        return model
    several = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
    note = f"frozen parameters are kept in {compute_dtype(precision)}, and saved as rounded to it: {frozen[0]}{several}"
    return replace(model, notes=(*model.notes, note))


def compile_model(
    model: Model, cluster: ClusterSpec, training: Training | Inference, asked: Asked, init: InitRecipe | None,
    start: Start,
) -> PlanRecord:  # fmt: skip
    """The plan of a traced model. Raises ParallelismError, DoesNotFitError or NoRuleError where there is none."""
    check_precision(training.precision, cluster)
    pinned = resolve_parallelism(asked.request, cluster)
    training = replace(training, compile=asked.compile and cluster.profile()[0].compiles)  # what runs is priced
    model = accept_whole(model, asked.constraints)
    check_rules(model)
    if isinstance(training, Training):
        check_read(pinned, training)
        training, model = resolved_groups(training, model), with_batch_moves(model)
    else:
        check_forward(pinned)
    model, (chosen, alternatives, report) = search_with_tables(model, cluster, training, pinned, asked)
    if isinstance(training, Training):
        check_flat(training, model)
    # proven here; who needs the program lowers the record again
    lowered = typed_program(model, chosen, training.microbatch_statistics)
    if training.compile and training.draws_by_rank:
        check_one_seed(lowered)
    extensions = extensions_of(model)
    return PlanRecord(cluster, training, model, chosen, alternatives, report, init, asked, extensions, start=start)


def asked_of(
    parallelism: str | Parallelism, constraints: Sequence[Constraint], training: Training | Inference, effort: str
) -> Asked:
    """What a user pins, as it is recorded. ParallelismError for an effort that is none."""
    check_effort(effort)
    said = read_parallelism(parallelism) if isinstance(parallelism, str) else parallelism
    system = said if isinstance(said, str) and said != "auto" else ""
    pinned = said if isinstance(said, Parallelism) else Parallelism()
    return Asked(system, pinned, tuple(constraints), effort, training.compile)


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


def check_forward(pinned: Parallelism) -> None:
    """Refuses under Inference() what is of a backward, of gradients or of an optimizer."""
    for name, values, cause in OF_TRAINING:
        if (value := getattr(pinned, name)) in values:
            remedy = "use zero=3, which shards parameters, or leave it out" if name == "zero" else "leave it out"
            given = f"{name}={value!r} with Inference()"
            raise ParallelismError(given, f"{cause}, and a forward alone has none", remedy)


OF_TRAINING = (
    ("recompute", ("selective", "full"), "it says which activations are computed again for the backward"),
    ("zero", (1, 2), "it shards the optimizer's state and gradients"),
    ("pipeline_schedule", ("zero-bubble",), "it splits the backward in two"),
)
"""Fields of a parallelism, values of it that serve training alone, and what they do."""


def check_result(model: Model, training: bool) -> None:
    last = model.blocks[model.segments[-1].block]
    if not last.outputs:
        cause = "its result follows from the batch alone: no parameter reaches it, so there is nothing to learn"
        raise InputsError(f"model {model.name}", cause, "give a model with parameters that its result depends on")
    shape = last.types()[last.outputs[0]].shape
    if training and shape != ():
        raise InputsError(
            f"a loss of shape {shape}", "what is minimised is one number", "let loss_fn return a scalar, such as a mean"
        )


def check_apart(model: Model, inputs: Inputs, retrace: Retrace) -> None:
    """Refuses statistics of microbatches where the graph holds a number that follows from the batch's rows: a
    microbatch would be divided by those of the whole batch. Another trace, of twice the rows, shows it."""
    rows = batch_rows(model)
    found = number_of_rows(model, retrace(with_rows(inputs, rows, 2 * rows)))
    if found:
        cause = f"a microbatch's graph isn't the batch's, for that of {2 * rows} rows differs: {found}"
        remedy = "use statistics='batch', or write what divides by the rows as a mean"
        raise ParallelismError("statistics='microbatch'", cause, remedy)
