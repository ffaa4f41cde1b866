"""Which optimizers there are, what each takes, and what Training and its groups give it."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from autoplan.arguments.values import options_text
from autoplan.errors import ParallelismError
from autoplan.ir.parameter_groups import OPTIMIZER_FIELDS, ParameterGroup
from autoplan.option_values import ROWWISE, SET_RATES, SEVERAL
from autoplan.options import Training
from autoplan.runtime.optim.gathered_optimizer import Kind
from autoplan.runtime.optim.lamb import Lamb
from autoplan.runtime.optim.rowwise_adagrad import RowwiseAdagrad

REFUSED = {
    "lbfgs": "it computes loss and gradients many times in one update, a program's step does so once",
    "sparseadam": "it takes sparse gradients alone, and a program gives no optimizer any",
}


def known_classes() -> Mapping[str, type[Optimizer]]:
    """The optimizers by lower-case name."""
    found: dict[str, type[Optimizer]] = {"lamb": Lamb, ROWWISE: RowwiseAdagrad}
    for name, value in vars(torch.optim).items():
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer:
            found[name.lower()] = value
    return {name: kind for name, kind in found.items() if name not in REFUSED}


def optimizer_class(name: str) -> type[Optimizer]:
    """The class with this lower-case name; ParallelismError where there is none, or none that a program can run."""
    classes = known_classes()
    if name not in classes:
        unknown_name = f"it isn't an optimizer of torch.optim by its lower-case name, nor 'lamb' or {ROWWISE!r}"
        cause = REFUSED.get(name, unknown_name)
        raise ParallelismError(f"optimizer={name!r}", cause, f"use one of {tuple(sorted(classes))}")
    return classes[name]


def accepted_by(kind: Kind) -> list[str]:
    """The options of an optimizer, by its own names."""
    return [name for name in inspect.signature(kind).parameters if name != "params"]


def options(kind: Kind, training: Training) -> dict[str, Any]:
    """What Training says of this optimizer, by its own names; what isn't said has the optimizer's default.

    ParallelismError for an option that it doesn't take, or that is given twice.
    """
    accepted, own = accepted_by(kind), training.optimizer_fields()
    beside = accepted_by(AdamW) if kind is Muon else ()
    for field, name in OPTIMIZER_FIELDS.items():
        if name in own and name not in accepted and name not in beside:
            raise unknown(f"{field}={own[name]!r}", kind.__name__, name, accepted)
    fields = {name: field for field, name in OPTIMIZER_FIELDS.items()}
    for name, value in training.optimizer_options:
        said = f"optimizer_options {name}={value!r}"
        if name not in accepted:
            raise unknown(said, kind.__name__, name, accepted)
        if name in own:
            raise ParallelismError(said, f"{fields[name]}={own[name]!r} says another", "give one")
    return {name: value for name, value in training.optimizer_settings().items() if name in accepted}


def options_beside_muon(training: Training) -> dict[str, Any]:
    """Options of the AdamW that updates what Muon doesn't."""
    accepted = accepted_by(AdamW)
    return {name: value for name, value in training.optimizer_fields().items() if name in accepted}


def group_options(kind: Kind, group: ParameterGroup) -> dict[str, Any]:
    """What a group says, of that which an optimizer takes: beside Muon is one that takes other options."""
    accepted = accepted_by(kind)
    return {name: value for name, value in group.options if name in accepted}


def check_optimizer(training: Training) -> None:
    """ParallelismError where there is no such optimizer, or one that doesn't take its options or those of a group."""
    kind = optimizer_class(training.optimizer)
    kinds = {kind: options(kind, training)} | ({AdamW: options_beside_muon(training)} if kind is Muon else {})
    said = f"{training.optimizer} with {options_text(kinds[kind])}"
    check_differentiable(said, kinds[kind])
    with refused(said):
        kind([nn.Parameter(torch.empty(2, 2))], **kinds[kind])
    accepted = sorted({name for each in kinds for name in accepted_by(each)})
    for number, group in enumerate(training.groups, 1):
        how = training.updating(number)
        if how is not training:
            check_own_optimizer(group, how, training)
            continue
        said = f"the group {group.title!r} with {options_text(dict(group.options))}"
        lacking = next((name for name, _ in group.options if name not in accepted), None)
        if lacking is not None:
            raise unknown(said, training.optimizer, lacking, accepted)
        check_differentiable(said, dict(group.options))
        for each, given in kinds.items():
            check_group(said, each, given, group_options(each, group))
        check_rates(said, group, training)


def check_own_optimizer(group: ParameterGroup, how: Training, training: Training) -> None:
    """ParallelismError where a group's optimizer can't stand beside Training's, or doesn't take the group's options.

    how  ``Training.updating`` of the group
    """
    said = f"the group {group.title!r} with optimizer={group.optimizer!r}"
    for name in training.optimizers:
        optimizer_class(name)
        if name not in SEVERAL:
            why = "it looks at more than elements or rows, or takes no sharded ones"
            cause = f"{name} can't stand beside another: {why}"
            raise ParallelismError(said, cause, f"use {', '.join(SEVERAL)} for all groups, or one optimizer")
    kind = optimizer_class(how.optimizer)
    for name, _ in group.options:
        if name not in accepted_by(kind):
            raise unknown(said, kind.__name__, name, accepted_by(kind))
    given = {**options(kind, how), **dict(group.options)}
    check_differentiable(said, given)
    with refused(f"{said} and {options_text(given)}"):
        kind([nn.Parameter(torch.empty(2, 2))], **given)
    if training.lr_schedule is not None and training.lr_schedule.name in SET_RATES:
        cause = f"{training.lr_schedule.name} sets momentum or betas of one optimizer, too"
        raise ParallelismError(said, cause, "use another schedule, such as 'cosine'")


def check_differentiable(said: str, given: Mapping[str, Any]) -> None:
    """ParallelismError where an update is to have gradients itself, which torch refuses at a step."""
    if given.get("differentiable"):
        cause = "parameters are updated in place, and such an update has no gradients itself"
        raise ParallelismError(said, cause, "leave differentiable out")


def check_group(said: str, kind: Kind, given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """ParallelismError where a group's options would change which state the optimizer keeps of a parameter."""
    with refused(said):
        other = state_names(kind, {**given, **own})
    if other != state_names(kind, given):
        cause = "the optimizer would keep other state of these parameters than of the rest"
        raise ParallelismError(said, cause, "give it for all, in optimizer_options, or leave it out")


def check_rates(said: str, group: ParameterGroup, training: Training) -> None:
    """ParallelismError where the learning rate's schedule overrules what a group says."""
    schedule = training.lr_schedule.name if training.lr_schedule is not None else ""
    overruled = [name for name, _ in group.options if name in ("lr", "betas", "momentum")]
    if schedule in SET_RATES and overruled:
        cause = f"{schedule} gives all groups the same, so {overruled[0]} would not count"
        raise ParallelismError(said, cause, "leave it out, or use another schedule")


def state_names(kind: Kind, given: Mapping[str, Any]) -> set[str]:
    """What an optimizer keeps of a parameter by its options."""
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = kind([parameter], **given)
    parameter.grad = torch.zeros(2, 2)
    optimizer.step()
    return {name for name, value in optimizer.state[parameter].items() if isinstance(value, Tensor)}


def unknown(said: str, owner: str, name: str, accepted: Iterable[str]) -> ParallelismError:
    """The error for an option that a class of torch doesn't take."""
    return ParallelismError(said, f"{owner} has no {name}: it takes {', '.join(accepted)}", "leave it out")


@contextmanager
def refused(said: str) -> Iterator[None]:
    """Raises what a class of torch says against its options as a ParallelismError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ParallelismError(said, str(error), "change these options") from None
