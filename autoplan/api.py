"""``parallelize``: a model and a cluster in, a plan out."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from autoplan.arguments.keywords import keywords, shown
from autoplan.arguments.synonyms import ARGUMENT_NAMES
from autoplan.cluster import ClusterSpec
from autoplan.compile import asked_of, check_arguments, check_precision, compile_model, traced_model
from autoplan.errors import InputsError
from autoplan.evaluation.handed_over import handed_over
from autoplan.evaluation.proof import Given
from autoplan.ir.graph import Model
from autoplan.ir.record import Asked
from autoplan.models.inputs import Inputs, resolve_inputs
from autoplan.options import Inference, Parallelism, Training
from autoplan.plan import Plan
from autoplan.rules.constraints import Constraint
from autoplan.search.space.systems import resolve as resolve_parallelism
from autoplan.trace.initialise import Given as Made
from autoplan.trace.initialise import check_given, given


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
    check_model(model, loss_fn)
    check_arguments(training, constraints)
    cluster = ClusterSpec.of(cluster_spec)
    resolve_parallelism(parallelism, cluster)
    training = training or Training(precision=cluster.default_precision)
    asked = asked_of(parallelism, constraints, training, effort)
    check_precision(training.precision, cluster)
    source = source_of(model, example_inputs, loss_fn, cluster.devices)
    return plan_of(source, source.traced(training), cluster, training, asked)


@dataclass(frozen=True)
class Source:
    """What is traced: a module, how its values come about, the global batch and the loss."""

    made: Made
    inputs: Inputs
    loss_fn: Callable | None

    def traced(
        self, training: Training | Inference, inputs: Inputs | None = None, evaluated: bool = False
    ) -> Model:
        """The graph, of another batch where one is given."""
        batch = self.inputs if inputs is None else inputs
        return traced_model(self.made.module, batch, self.loss_fn, training, evaluated)


def source_of(
    model: nn.Module | Callable[[], nn.Module], example_inputs: object, loss_fn: Callable | None, devices: int
) -> Source:
    """``devices``: that the batch is to feed where none is given."""
    made = given(model)
    return Source(made, resolve_inputs(made.module, example_inputs, devices), loss_fn)


def plan_of(
    source: Source, traced: Model, cluster: ClusterSpec, training: Training | Inference, asked: Asked
) -> Plan:
    """The plan of a source that was traced for this training."""
    read = {buffer.name for buffer in traced.buffers}
    for parameter in traced.parameters:
        read |= {name for held in (parameter.members or (parameter,)) for name in (held.source, *held.aliases)}
    made = source.made
    record = compile_model(traced, cluster, training, asked, made.recipe, made.start.among(read))
    plain = replace(training, statistics="batch") if isinstance(training, Training) else training
    known = Given(
        made.module, source.inputs, traced,
        retrace=lambda other: source.traced(training, other, evaluated=True),
        retrain=lambda other: source.traced(plain, other),
        handed=handed_over(made.module),
    )  # fmt: skip
    return Plan(record, module=made.module, loss_fn=source.loss_fn, given=known)


def check_model(model: object, loss_fn: object) -> None:
    """InputsError for what is no model, and no loss."""
    check_given(model)
    if loss_fn is not None and not callable(loss_fn):
        cause = f"it is of type {type(loss_fn).__name__}, which can't be called"
        raise InputsError(f"loss_fn={shown(loss_fn)}", cause, "give a function of the model's output and the targets")
