"""The optimizer: a class of torch.optim, or LAMB, over this rank's parameters."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer

from autoplan.ir.buckets import Compression
from autoplan.option_values import ELEMENTWISE, ON_DISK, ROWWISE
from autoplan.options import Training
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.memory.disk_memory import DiskMemory
from autoplan.runtime.optim.clip import clip_gradients
from autoplan.runtime.optim.frozen_lamb import FrozenVarianceLamb, largest_over_ranks
from autoplan.runtime.optim.gathered_optimizer import (
    GatheredOptimizer,
    GatheredParameter,
    Group,
    Kind,
    LocalParameter,
    follow_rows,
    gathered_parameters,
    split_dtensors,
)
from autoplan.runtime.optim.lamb import Lamb, squares_over_ranks
from autoplan.runtime.optim.lr_scheduler import LearningRates
from autoplan.runtime.optim.masters import attach
from autoplan.runtime.optim.optimizer_options import group_options, optimizer_class, options, options_beside_muon
from autoplan.runtime.optim.parameter_group import titles
from autoplan.runtime.optim.rowwise_adagrad import RowwiseAdagrad, RowwiseRule, rule_of
from autoplan.runtime.optim.streamed_optimizer import StreamedOptimizer
from autoplan.runtime.parallel.compression.onebit import FrozenVarianceAdam
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.parallel.whole_tensors import Storage
from autoplan.runtime.program_spec import ProgramSpec

PLAIN = ("rprop",)
"""Elementwise optimizers that assign by masks, which DTensors don't know: their parts are updated one by one."""


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]], training: Training,
    how: Compression | None = None,
) -> Optimizer:  # fmt: skip
    """The planned optimizer over parameters that are whole, with its schedule; it doesn't clip.

    parameters  with their names, a tied one under each of its own, where Training has groups
    how         their gradients are compressed

    A schedule that looks at the loss stands still here. Muon updates matrices alone: AdamW, with what Training says of
    it, updates the parameters that are none.
    """
    names: dict[nn.Parameter, list[str]] = {}
    for each in parameters:
        name, parameter = each if isinstance(each, tuple) else ("", each)
        names.setdefault(parameter, []).append(name)
    groups = [[p for p in names if training.group_of(names[p]) == n] for n in numbers(training)]
    trainable = [[p for p in group if p.requires_grad] for group in groups]
    if how is not None and how.one_bit:
        optimizer: Optimizer = with_frozen_variance(training, trainable, how)
    elif len(training.optimizers) > 1:
        optimizer = with_several(training, trainable)
    elif (kind := optimizer_class(training.optimizer)) is Muon:
        optimizer = with_muon(training, local_parameters(trainable))
    else:
        optimizer = elementwise(kind, training, trainable, options(kind, training))
    if training.lr_schedule is not None:
        rates = LearningRates(training.lr_schedule, optimizer)
        if not rates.watches:
            optimizer.register_step_post_hook(lambda *_: rates.moved())
    return optimizer


def rank_optimizer(
    spec: ProgramSpec, storage: Storage, held: Sequence[ShardedParameter], device: torch.device,
    replica: MeshAxis | None = None, disk: DiskMemory | None = None,
) -> Optimizer:  # fmt: skip
    """The optimizer of this rank's parameters, which clips to ``training.clip_grad_norm`` before each step.

    disk     where masters lie, and the state is to, where that is on disks

    replica  the ranks of one replica, where each steps by itself; None: the world
    """
    training = spec.training
    rowwise = None
    if len(training.optimizers) > 1 and ROWWISE in training.optimizers:
        rowwise = RowwiseRule(spec, held, device, replica)
    disk = disk if spec.parallelism.offload == ON_DISK else None  # else it has tables alone
    optimizer = over_parts(spec, storage, held, rowwise) if disk is None else streamed(training, held, disk)
    if isinstance(optimizer, Lamb):
        sources = [p.source for p in spec.lowered.parameters]
        optimizer.whole_squares = squares_over_ranks(held, sources, device, replica)
        if isinstance(optimizer, FrozenVarianceLamb):
            optimizer.largest = largest_over_ranks(held, sources, device)
    if isinstance(optimizer, RowwiseAdagrad):
        optimizer.follow(spec, held, device, replica)
    follow_rows(optimizer, [h for h in held if h.rows is not None and rule_of(optimizer, h.updated) is None])
    limit = training.clip_grad_norm
    if limit is not None:
        optimizer.register_step_pre_hook(lambda *_: void(clip_gradients(held, limit, device, replica)))
    if disk is None:
        attach(optimizer, held, device, spec.parallelism.offload == "optimizer")
    return optimizer


def streamed(training: Training, held: Sequence[ShardedParameter], disk: DiskMemory) -> Optimizer:
    """The planned optimizer over masters on the disk."""
    kind, given = optimizer_class(training.optimizer), options(optimizer_class(training.optimizer), training)
    groups = [
        [h.updated for h in held if h.stored.trainable and training.group_of(h.stored.names) == n]
        for n in numbers(training)
    ]
    one = [master for group in groups for master in group][:1]
    given = in_one_pass(kind, given, one) | given
    by_master = {h.updated: h for h in held}
    return StreamedOptimizer(with_options(kind, training, local_parameters(groups), given), by_master, disk)


def over_parts(
    spec: ProgramSpec, storage: Storage, held: Sequence[ShardedParameter], rowwise: RowwiseRule | None = None
) -> Optimizer:
    """The planned optimizer over what this rank holds.

    rowwise  row-wise Adagrad of these, where groups have it beside others
    """
    training, how = spec.training, spec.parallelism.compressed
    kind = optimizer_class(training.optimizer)
    groups = [[h for h in held if training.group_of(h.stored.names) == n] for n in numbers(training)]
    trainable = [[h.updated for h in group if h.stored.trainable] for group in groups]
    if how is not None and how.one_bit:
        return with_frozen_variance(training, trainable, how)
    if len(training.optimizers) > 1:
        return with_several(training, trainable, rowwise)
    if training.optimizer in PLAIN and any(isinstance(p, DTensor) for group in trainable for p in group):
        return GatheredOptimizer(with_options(kind, training, local_parameters(trainable)))
    if training.optimizer in ELEMENTWISE or kind in (Lamb, RowwiseAdagrad):
        given = options(kind, training)
        alike = {(p.device, isinstance(p, DTensor), p.is_complex()): p for group in trainable for p in group}
        return elementwise(kind, training, trainable, in_one_pass(kind, given, alike.values()) | given)
    wholes = [gathered_parameters(group, storage) for group in groups]
    if kind is not Muon:
        return GatheredOptimizer(with_options(kind, training, wholes))
    return with_muon(training, wholes)


def in_one_pass(kind: Kind, given: Mapping[str, Any], sorts: Iterable[nn.Parameter]) -> dict[str, bool]:
    """``fused=True`` where the class has a kernel that updates a parameter in one pass over memory, for each of these
    sorts of parameters; empty where options ask for something that it doesn't do.

    Tried on one element: which devices have it differs from class to class, and so does whether DTensors do; torch says
    so in no public place.
    """
    if "fused" not in inspect.signature(kind).parameters or set(given) & {"foreach", "fused"}:
        return {}
    try:
        for sort in sorts:
            one = torch.zeros(1, device=sort.device, dtype=torch.complex64 if sort.is_complex() else None)
            if isinstance(sort, DTensor):
                one = DTensor.from_local(one, sort.device_mesh, sort.placements, run_check=False)
            parameter = nn.Parameter(one)
            parameter.grad = torch.zeros_like(parameter)
            kind([parameter], **given, fused=True).step()
    except (RuntimeError, NotImplementedError):  # no kernel there, or not together with maximize
        return {}
    return {"fused": True}


def with_frozen_variance(
    training: Training, groups: Sequence[Sequence[nn.Parameter]], how: Compression
) -> Optimizer:
    """Adam, AdamW or LAMB, whose variance is frozen once its momentum goes compressed."""
    kind, warm_up = optimizer_class(training.optimizer), how.warm_up(training.compression_start)
    if kind is Lamb:
        return elementwise(partial(FrozenVarianceLamb, warm_up=warm_up), training, groups, options(kind, training))
    made = partial(FrozenVarianceAdam, warm_up=warm_up, decoupled=issubclass(kind, AdamW))
    return elementwise(made, training, groups, options(kind, training))


def numbers(training: Training) -> range:
    """Of its groups, the default one among them."""
    return range(1 + len(training.groups))


def elementwise(
    kind: Callable[..., Optimizer], training: Training, groups: Sequence[Sequence[nn.Parameter]],
    given: Mapping[str, Any],
) -> Optimizer:  # fmt: skip
    """A class of torch.optim, with the options of each group over those that are given."""
    own = [{}, *(dict(group.options) for group in training.groups)]
    named = zip(titles(training), own, groups, strict=True)
    split = [split_dtensors({"name": title, **options, "params": list(group)}) for title, options, group in named]
    return kind([each for group in split for each in group], **given)


def with_options(
    kind: type[Optimizer], training: Training, groups: Sequence[Sequence[GatheredParameter | LocalParameter]],
    given: Mapping[str, Any] | None = None,
) -> list[Group]:  # fmt: skip
    """The groups as one class updates them, each with its options over those that are given, or Training's."""
    given = options(kind, training) if given is None else given
    own = [{}, *(group_options(kind, group) for group in training.groups)]
    named = zip(titles(training), own, groups, strict=True)
    return [Group(kind, title, {**given, **options}, tuple(group)) for title, options, group in named]


def with_muon(training: Training, groups: Sequence[Sequence[GatheredParameter | LocalParameter]]) -> Optimizer:
    """Muon over matrices, AdamW over what is none."""
    matrices = [[w for w in group if len(w.shape) == 2] for group in groups]
    others = [[w for w in group if len(w.shape) != 2] for group in groups]
    beside = options_beside_muon(training)
    return GatheredOptimizer(with_options(Muon, training, matrices), with_options(AdamW, training, others, beside))


def with_several(
    training: Training, groups: Sequence[Sequence[nn.Parameter]], rowwise: RowwiseRule | None = None
) -> Optimizer:
    """Each group by its own class; ``rowwise``: in row-wise Adagrad's place."""
    found, named = [], zip(titles(training), [(), *(each.options for each in training.groups)], groups, strict=True)
    for number, (title, own, parameters) in enumerate(named):
        how = training.updating(number)
        kind = optimizer_class(how.optimizer)
        given = {**options(kind, how), **dict(own)}
        alike = {(p.device, isinstance(p, DTensor), p.is_complex()): p for p in parameters}
        given |= in_one_pass(kind, given, alike.values()) if alike else {}
        made = rowwise if rowwise is not None and how.optimizer == ROWWISE else kind
        found.append(Group(made, title, given, tuple(map(LocalParameter, parameters))))
    return GatheredOptimizer((), found)


def local_parameters(groups: Sequence[Sequence[nn.Parameter]]) -> list[list[LocalParameter]]:
    """Parameters that are updated as they lie here."""
    return [[LocalParameter(p) for p in group] for group in groups]


def void(_: object) -> None:
    """A step hook's result would replace the step's arguments."""
