"""The optimizer: a class of torch.optim, or LAMB, over this rank's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer

from autoplan.errors import ParallelismError
from autoplan.options import ELEMENTWISE, Training
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.memory.optimizer_offload import attach, on_host_memory
from autoplan.runtime.optim.clip import clip_gradients
from autoplan.runtime.optim.gathered_optimizer import (
    GatheredOptimizer,
    GatheredParameter,
    Group,
    LocalParameter,
    gathered_parameters,
    split_dtensors,
)
from autoplan.runtime.optim.grouping import check_groups, names_of, number_of, own_options, titles
from autoplan.runtime.optim.lamb import Lamb, squares_over_ranks
from autoplan.runtime.optim.lr_scheduler import LearningRates
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.parallel.whole_tensors import Storage
from autoplan.runtime.spec import ProgramSpec

PLAIN = ("rprop",)
"""Of ELEMENTWISE, what assigns by masks, which DTensors don't know: their parts are updated one by one."""

REFUSED = {
    "lbfgs": "it computes loss and gradients many times in one update, a program's step does so once",
    "sparseadam": "it takes sparse gradients alone, a program's are dense",
}

FIELDS = {
    "lr": "learning_rate", "weight_decay": "weight_decay", "betas": "betas", "eps": "eps", "momentum": "momentum",
}  # fmt: skip
"""The fields of Training by the names that optimizers have for them."""

BESIDE = ("lr", "weight_decay", "betas", "eps")
"""Of these, what the AdamW beside Muon takes."""


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]], training: Training
) -> Optimizer:
    """The planned optimizer over parameters that are whole, with its schedule; it doesn't clip.

    parameters  with their names, a tied one under each of its own, where Training has groups

    A schedule that looks at the loss stands still here. Muon updates matrices alone: AdamW, with what Training says of
    it, updates the parameters that are none.
    """
    kind = optimizer_class(training.optimizer)
    names: dict[nn.Parameter, list[str]] = {}
    for each in parameters:
        name, parameter = each if isinstance(each, tuple) else ("", each)
        names.setdefault(parameter, []).append(name)
    groups = [[p for p in names if number_of(training, names[p]) == n] for n in numbers(training)]
    trainable = [[p for p in group if p.requires_grad] for group in groups]
    if kind is Muon:
        optimizer: Optimizer = with_muon(GatheredOptimizer, training, local_parameters(trainable))
    else:
        optimizer = elementwise(kind, training, trainable, options(kind, training))
    if training.lr_schedule is not None:
        rates = LearningRates(training.lr_schedule, optimizer)
        if not rates.watches:
            optimizer.register_step_post_hook(lambda *_: rates.moved())
    return optimizer


def rank_optimizer(
    spec: ProgramSpec, storage: Storage, held: Sequence[ShardedParameter], device: torch.device,
    replica: MeshAxis | None = None,
) -> Optimizer:  # fmt: skip
    """The optimizer of this rank's parameters, which clips to ``training.clip_grad_norm`` before each step.

    replica  the ranks of one replica, where each steps by itself; None: the world
    """
    training = spec.training
    on_host = any(h.master is not None for h in held)
    optimizer = over_parts(spec, storage, held, on_host)
    if isinstance(optimizer, Lamb):
        optimizer.whole_squares = squares_over_ranks(held, [p.source for p in spec.lowered.parameters], device, replica)
    limit = training.clip_grad_norm
    if limit is not None:
        optimizer.register_step_pre_hook(lambda *_: void(clip_gradients(held, limit, device, replica)))
    if on_host:
        attach(optimizer, held, device)
    return optimizer


def over_parts(spec: ProgramSpec, storage: Storage, held: Sequence[ShardedParameter], on_host: bool) -> Optimizer:
    """The planned optimizer over what this rank holds.

    on_host  these are the host's copies: updated in one pass over memory, where the optimizer has a fused kernel
    """
    training = spec.training
    kind = optimizer_class(training.optimizer)
    further: dict[str, Any] = {"fused": True} if on_host and "fused" in inspect.signature(kind).parameters else {}
    made: Callable[[type[Optimizer]], Callable[..., Optimizer]] = on_host_memory if on_host else as_it_is
    groups = [[h for h in held if number_of(training, names_of(h.stored)) == n] for n in numbers(training)]
    trainable = [[h.updated for h in group if h.stored.trainable] for group in groups]
    if training.optimizer in PLAIN and any(isinstance(p, DTensor) for group in trainable for p in group):
        return made(GatheredOptimizer)(with_options(kind, training, local_parameters(trainable)))
    if training.optimizer in ELEMENTWISE or kind is Lamb:
        return elementwise(made(kind), training, trainable, options(kind, training) | further)
    wholes = [gathered_parameters(group, storage) for group in groups]
    if kind is not Muon:
        return made(GatheredOptimizer)(with_options(kind, training, wholes))
    return with_muon(made(GatheredOptimizer), training, wholes)


def numbers(training: Training) -> range:
    """Of its groups, the default one among them."""
    return range(1 + len(training.groups))


def elementwise(
    made: Callable[..., Optimizer], training: Training, groups: Sequence[Sequence[nn.Parameter]],
    given: Mapping[str, Any],
) -> Optimizer:  # fmt: skip
    """A class of torch.optim, with the options of each group over those that are given."""
    own = [{}, *(dict(group.options) for group in training.groups)]
    named = zip(titles(training), own, groups, strict=True)
    split = [split_dtensors({"name": title, **options, "params": list(group)}) for title, options, group in named]
    return made([each for group in split for each in group], **given)


def with_options(
    kind: type[Optimizer], training: Training, groups: Sequence[Sequence[GatheredParameter | LocalParameter]],
    given: Mapping[str, Any] | None = None,
) -> list[Group]:  # fmt: skip
    """The groups as one class updates them, each with its options over those that are given, or Training's."""
    given = options(kind, training) if given is None else given
    own = [{}, *(own_options(kind, group) for group in training.groups)]
    named = zip(titles(training), own, groups, strict=True)
    return [Group(kind, title, {**given, **options}, tuple(group)) for title, options, group in named]


def with_muon(
    made: Callable[..., Optimizer], training: Training, groups: Sequence[Sequence[GatheredParameter | LocalParameter]]
) -> Optimizer:
    """Muon over matrices, AdamW over what is none."""
    matrices = [[w for w in group if len(w.shape) == 2] for group in groups]
    others = [[w for w in group if len(w.shape) != 2] for group in groups]
    return made(with_options(Muon, training, matrices), with_options(AdamW, training, others, beside(training)))


def local_parameters(groups: Sequence[Sequence[nn.Parameter]]) -> list[list[LocalParameter]]:
    """Parameters that are updated as they lie here."""
    return [[LocalParameter(p) for p in group] for group in groups]


def as_it_is(kind: type[Optimizer]) -> type[Optimizer]:
    return kind


def void(_: object) -> None:
    """A step hook's result would replace the step's arguments."""


def check_optimizer(training: Training) -> None:
    """ParallelismError where there is no such optimizer, or one that doesn't take its options."""
    kind = optimizer_class(training.optimizer)
    given = options(kind, training)
    try:
        kind([nn.Parameter(torch.empty(2, 2))], **given)
    except (ValueError, TypeError, RuntimeError) as error:
        told = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ParallelismError(f"{training.optimizer} with {told}", str(error), "give others") from None
    check_groups(training, {kind: given} | ({AdamW: beside(training)} if kind is Muon else {}))


def optimizer_class(name: str) -> type[Optimizer]:
    """The class with this lower-case name; ParallelismError where there is none, or none that a program can run."""
    classes = known_classes()
    if name in REFUSED:
        raise ParallelismError(f"optimizer={name!r}", REFUSED[name], f"use one of {tuple(sorted(classes))}")
    if name not in classes:
        cause = "it is no optimizer of torch.optim by its lower-case name, nor 'lamb'"
        raise ParallelismError(f"optimizer={name!r}", cause, f"use one of {tuple(sorted(classes))}")
    return classes[name]


def known_classes() -> Mapping[str, type[Optimizer]]:
    """The optimizers by lower-case name."""
    found: dict[str, type[Optimizer]] = {"lamb": Lamb}
    for name, value in vars(torch.optim).items():
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer:
            found[name.lower()] = value
    return {name: kind for name, kind in found.items() if name not in REFUSED}


def options(kind: type[Optimizer], training: Training) -> dict[str, Any]:
    """What Training says of this optimizer, by its own names; what isn't said has the optimizer's default.

    ParallelismError for an option that it doesn't take, or that is given twice.
    """
    accepted = [name for name in inspect.signature(kind).parameters if name != "params"]
    told = {name: getattr(training, field) for name, field in FIELDS.items() if getattr(training, field) is not None}
    further = dict(training.optimizer_options)
    taken = {*accepted, *BESIDE} if kind is Muon else accepted
    for name, said in [(n, f"{FIELDS[n]}={v!r}") for n, v in told.items()] + [
        (n, f"optimizer_options {n}={v!r}") for n, v in further.items()
    ]:
        if name not in taken or (name in further and name not in accepted):
            cause = f"{kind.__name__} has no {name}: it takes {', '.join(accepted)}"
            raise ParallelismError(said, cause, "leave it out")
        if name in told and name in further:
            raise ParallelismError(f"optimizer_options {name}={further[name]!r}", f"{said} says another", "give one")
    return {name: value for name, value in told.items() if name in accepted} | further


def beside(training: Training) -> dict[str, Any]:
    """Options of the AdamW that updates what Muon doesn't."""
    said = {name: getattr(training, FIELDS[name]) for name in BESIDE}
    return {name: value for name, value in said.items() if value is not None}
