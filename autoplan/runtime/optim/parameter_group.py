"""Which group of Training a parameter belongs to.

Groups are numbered (``Training.group_of``): 0 is the rest, under the title "default", then those in their order. An
optimizer's ``param_groups`` come in that order, each with its title under "name"; one that has both plain and sharded
parameters, or matrices and others under Muon, stands there more than once.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from autoplan.errors import ParallelismError
from autoplan.ir.graph import Model, TensorType
from autoplan.ir.parameter_groups import ParameterGroup
from autoplan.options import Training

DEFAULT = "default"


def titles(training: Training) -> tuple[str, ...]:
    return (DEFAULT, *(group.title for group in training.groups))


def resolved_groups(training: Training, model: Model) -> Training:
    """The same with every predicate as the names that it is true of; ParallelismError for a group without members."""
    if not training.groups:
        return training
    known = dict(whole_parameters(model))
    groups = tuple(named(group, known) for group in training.groups)
    found = replace(training, groups=groups)
    for number, group in enumerate(groups, 1):
        matched = [names for names in known if group.has(names)]
        first = next(map(found.group_of, matched), 0)
        if not matched:
            every = [name for names in known for name in names]
            near = difflib.get_close_matches(group.title.replace("*", ""), every, n=3, cutoff=0.3)
            remedy = f"names here are for example {', '.join(near or every[:3])}"
            raise ParallelismError(f"the group {group.title!r}", "no parameter of the model matches it", remedy)
        if all(found.group_of(names) != number for names in matched):
            cause = f"every parameter that it matches belongs to {groups[first - 1].title!r}, which stands before it"
            raise ParallelismError(f"the group {group.title!r}", cause, "put it first")
    return found


def whole_parameters(model: Model) -> Iterator[tuple[tuple[str, ...], tuple[TensorType, bool]]]:
    """The user's own parameters: all names of each, and its type and whether it is trained."""
    pieces: dict[str, list] = {}
    for parameter in (*model.parameters, *model.unread):
        boxes = {member.source: member for member in parameter.members}  # several of a table that is cut by columns
        for member in boxes.values():
            kind = TensorType(member.shape, parameter.type.dtype)
            yield (member.source, *member.aliases), (kind, parameter.trainable)
        if not parameter.members:
            pieces.setdefault(parameter.source, []).append(parameter)
    for source, parts in pieces.items():
        first, shape = parts[0], list(parts[0].type.shape)
        if first.dim >= 0:
            shape[first.dim] = sum(part.type.shape[first.dim] for part in parts)
        yield (source, *first.aliases), (TensorType(tuple(shape), first.type.dtype), first.trainable)


def named(group: ParameterGroup, known: Mapping[tuple[str, ...], tuple[TensorType, bool]]) -> ParameterGroup:
    if not callable(group.match):
        return group
    found = []
    for names, (kind, trainable) in known.items():
        values = torch.empty(kind.shape, dtype=getattr(torch, kind.dtype), device="meta")
        parameter = nn.Parameter(values, requires_grad=trainable and kind.floating)
        try:
            found += [names[0]] if any(group.match(name, parameter) for name in names) else []
        except Exception as error:
            cause = f"its predicate fails on {names[0]} ({error}); it is given names and tensors of the meta device"
            raise ParallelismError(f"the group {group.title!r}", cause, "look at names, shapes and dtypes") from error
    if not found:
        raise ParallelismError(f"the group {group.title!r}", "it is true of no parameter of the model", "leave it out")
    return replace(group, match=group.title, names=tuple(found))


def check_flat(training: Training, model: Model) -> None:
    """ParallelismError where what lies in one parameter belongs to different groups."""
    for parameter in model.parameters:
        first: dict[int, str] = {}
        for member in parameter.members:
            first.setdefault(training.group_of((member.source, *member.aliases)), member.source)
        if len(first) > 1:
            one, other, *_ = first.values()
            cause = "they lie in one parameter of the program, and belong to different groups"
            raise ParallelismError(f"{one} and {other}", cause, "let one group match both, or neither")
