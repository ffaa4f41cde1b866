"""The optimizer's parameter groups in a checkpoint: options by the names of parameters, whatever the plan's groups are.

A plan's optimizer may hold one of the user's groups as several (plain parameters and DTensors apart), and a rank only
some of its parameters. So what is saved is each set of options that differs, with the names of the parameters that
have it; None where all have the same. What a group is called, and how its updates are computed, stays the plan's.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from autoplan.errors import WeightsError
from autoplan.runtime.checkpoint import plain_values
from autoplan.runtime.collectives.objects import from_all
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

HOW = ("params", "param_names", "name", "foreach", "fused", "capturable", "differentiable", "initial_lr")
Options = dict[str, object]
Group = tuple[Options, list[str] | None]
"""Options, and the names of the parameters that have them; None: all."""


def options_of(group: Mapping[str, Any]) -> Options:
    """What a group says of its updates, in plain values."""
    told = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in group.items()}
    return {name: plain_values.frozen(value, name) for name, value in told.items() if name not in HOW}


def own_groups(optimizer: Optimizer, held: Sequence[ShardedParameter]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """This rank's groups that have parameters, with their names."""
    names = {id(h.updated): h.name for h in held}
    for group in optimizer.param_groups:
        if group["params"]:
            yield group, [names[id(p)] for p in group["params"]]


def saved_groups(optimizer: Optimizer, held: Sequence[ShardedParameter], process_group: ProcessGroup) -> list[Group]:
    """The groups of all ranks, the same on each; every rank calls it."""
    mine: list[Group] = [(options_of(group), names) for group, names in own_groups(optimizer, held)]
    distinct: list[Options] = []
    for options in chain.from_iterable(from_all([options for options, _ in mine], process_group)):
        if options not in distinct:
            distinct.append(options)
    if len(distinct) < 2:
        return [(options, None) for options in distinct]
    named = from_all(mine, process_group)
    found: list[Group] = []
    for options in distinct:
        names = {name for each in named for given, some in each if given == options for name in some or ()}
        found.append((options, sorted(names)))
    return found


def restored(
    optimizer: Optimizer, held: Sequence[ShardedParameter], groups: Sequence[Any], source: Path
) -> list[Options]:
    """What each of this rank's groups, in their order, has by the checkpoint; nothing is changed.

    WeightsError where the parameters of one group had different options.
    """
    everyone: Options | None = next((dict(options) for options, names in groups if names is None), None)
    by_name: dict[str, Options] = {name: dict(options) for options, names in groups for name in names or ()}
    known = {id(group): names for group, names in own_groups(optimizer, held)}
    found: list[Options] = []
    for group in optimizer.param_groups:
        names = known.get(id(group), [])
        told = {name: by_name.get(name, everyone) for name in names}
        first: Options = next((options for options in told.values() if options is not None), {})
        for name, options in told.items():
            if options is not None and options != first:
                raise different(source, names[0], name, first, options)
        found.append({key: value for key, value in first.items() if key in group})
    return found


def different(source: Path, one: str, other: str, a: Options, b: Options) -> WeightsError:
    key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
    said = f"{key} of {one} is {a.get(key)} there, of {other} {b.get(key)}; here they are in one group"
    return WeightsError(source, said, "plan with the parameter groups that it had")


def changes(group: Mapping[str, Any], options: Options) -> str:
    """What the checkpoint says otherwise than the plan: "weight_decay 0.1 (the plan's 0.01)"."""
    before = options_of(group)
    return ", ".join(
        f"{name} {value} (the plan's {before[name]})" for name, value in options.items() if before.get(name) != value
    )


def take(optimizer: Optimizer, found: Sequence[Options]) -> None:
    """Gives each group the options that ``restored`` found for it."""
    for group, options in zip(optimizer.param_groups, found, strict=True):
        for name, value in options.items():
            if isinstance(group[name], Tensor):
                group[name].fill_(value)
            else:
                group[name] = value
