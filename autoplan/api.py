"""``parallelize``: a model and a cluster in, a plan out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from autoplan.arguments.keywords import keywords, shown
from autoplan.arguments.synonyms import ARGUMENT_NAMES
from autoplan.ask import asked_of, check_arguments, check_precision, default_training, planned
from autoplan.cluster import ClusterSpec
from autoplan.errors import InputsError
from autoplan.evaluation import Given
from autoplan.ir.graph import Model
from autoplan.models.inputs import Inputs, resolve_inputs
from autoplan.options import Inference, Parallelism, Training
from autoplan.plan import Plan
from autoplan.rules.constraints import Constraint
from autoplan.search.space.systems import resolve as resolve_parallelism
from autoplan.trace import check_dtypes, trace
from autoplan.trace.initialise import Start, check_given, given
from autoplan.trace.passes.precision import compute_dtype, in_precision


@keywords(InputsError, ARGUMENT_NAMES)
def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    cluster_spec: ClusterSpec | str | Mapping | os.PathLike,
    example_inputs: object = None,
    *,
    loss_fn: Callable | None = None,
    training: Training | Inference | None = None,
    parallelism: str | Parallelism = "auto",
    constraints: Sequence[Constraint] = (),
    effort: str = "full",
) -> Plan:
    """Plans how a model trains on a cluster.

    model           any module that torch.export traces, left as it was: training starts from the values that it
                    holds, and one on the meta device holds none; each submodule trains in its own mode, and one that is
                    wholly in eval mode is switched to training. Or a function without arguments that makes one (a
                    class, a functools.partial): it is recorded as it runs, so that ``init_weights(seed)`` gives what
                    torch.manual_seed(seed) and the function give
    cluster_spec    "4x8 h100-sxm" (nodes x devices, a profile's name), a .toml path, a dict, or a ClusterSpec
    example_inputs  tuple or dict of tensors, meta tensors welcome: the global batch of one optimizer step
    loss_fn         (model_output, *targets) -> scalar; not needed where the model returns its loss: as it is, as "loss"
                    of a dict or a ModelOutput, or as the only floating scalar of a tuple such as (logits, loss)
    training        how it trains: optimizer, precision, clipping; None: AdamW, bf16-mixed where the device computes
                    faster in bfloat16 than in float32, else fp32
    parallelism     "auto", a named system, or Parallelism(...) with any field pinned
    constraints     operators pinned to a layout, splits forbidden, operators accepted as replicated
    effort          "full"; "fast": a quick answer, with fewer alternatives beside it and without the price of a pin

    Raises a subclass of AutoplanError, which names value, cause and remedy, where there is no plan.
    """
    check_given(model)
    check_loss_fn(loss_fn)
    check_arguments(training, constraints)
    cluster = ClusterSpec.of(cluster_spec)
    resolve_parallelism(parallelism, cluster)
    training = training or default_training(cluster)
    asked = asked_of(parallelism, constraints, training, effort)
    check_precision(training.precision, cluster)
    made = given(model)
    inputs = resolve_inputs(made.module, example_inputs, cluster.devices)
    traced = traced_model(made.module, inputs, loss_fn, training)
    record = planned(traced, cluster, training, asked, made.recipe, reading(made.start, traced))
    known = Given(
        made.module, inputs, traced, lambda other: traced_model(made.module, other, loss_fn, training, evaluated=True)
    )
    return Plan(record, module=made.module, loss_fn=loss_fn, given=known)


def traced_model(
    model: nn.Module,
    inputs: Inputs,
    loss_fn: Callable | None,
    training: Training | Inference,
    evaluated: bool = False,
) -> Model:
    """The model traced for a precision. InputsError where a loss isn't one number, or inputs aren't of a dtype that the
    model takes.

    evaluated  a training plan's loss as ``model.eval()`` computes it
    """
    check_dtypes(model, inputs, loss_fn, training.precision)
    is_training, dtype = isinstance(training, Training), compute_dtype(training.precision)
    found = trace(model, inputs, loss_fn=loss_fn, training=is_training, dtype=dtype, evaluated=evaluated)
    traced = in_precision(found, training.precision)
    check_loss(traced, is_training)
    return traced


def reading(start: Start, traced: Model) -> Start:
    """What is unknown among what the traced model reads."""
    names = {buffer.name for buffer in traced.buffers}
    names |= {name for p in traced.parameters for name in (p.source, *p.aliases)}
    return start.among(names)


def check_loss_fn(loss_fn: object) -> None:
    if loss_fn is not None and not callable(loss_fn):
        cause = f"it is of type {type(loss_fn).__name__}, which can't be called"
        raise InputsError(f"loss_fn={shown(loss_fn)}", cause, "give a function of the model's output and the targets")


def check_loss(traced: Model, training: bool) -> None:
    last = traced.blocks[traced.segments[-1].block]
    if not last.outputs:
        cause = "its result follows from the batch alone: no parameter reaches it, so there is nothing to learn"
        raise InputsError(f"model {traced.name}", cause, "give a model with parameters that its result depends on")
    shape = last.types()[last.outputs[0]].shape
    if training and shape != ():
        raise InputsError(
            f"a loss of shape {shape}", "what is minimised is one number", "let loss_fn return a scalar, such as a mean"
        )
