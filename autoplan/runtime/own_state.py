"""A program's state for one's own tools: the model's values, and the optimizer's, as each rank holds them.

The model's are DTensors, as torch.distributed.checkpoint and resharding tools take them; an average of weights is kept
by the same keys. The optimizer's are what torch's ``state_dict`` gives, with what moves its steps beside it. Whether a
state fits is asked on all ranks before any of them changes.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from autoplan.errors import WeightsError
from autoplan.runtime.collectives.objects import together
from autoplan.runtime.optim.updates import Updates
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local
from autoplan.runtime.parallel.whole_tensors import Storage

PROGRAM, NAMES = "program", "names"
OF_THIS_PLAN = "give what state_dict() returned on this rank, of this plan; load_weights takes whole tensors"
OF_THIS_OPTIMIZER = "give what program.optimizer.state_dict() returned on this rank, of this plan"


class RankState(dict[str, Tensor]):
    """One rank's part. It isn't pickled: ``torch.save`` would write one rank's part of the model, as DTensors that no
    process without the same ranks can read."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        value, cause = "program.state_dict()", "it is one rank's part, and would be saved without the others'"
        remedy = "save program.state_dict(full=True), which every rank calls; or program.save_checkpoint(folder)"
        raise WeightsError(value, cause, remedy)

    def copy(self) -> "RankState":
        return RankState(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> "RankState":
        return RankState({name: copy.deepcopy(value, memo) for name, value in self.items()})


def model_state(
    storage: Storage,
    held: Sequence[ShardedParameter],
    further: Mapping[str, Tensor],
    value: Callable[[ShardedParameter], Tensor] = lambda held: held.values,
) -> RankState:
    """This rank's values by the program's names: parameters as DTensors, and views of what is whole on each rank.

    value  of a parameter; by default a view
    """
    parameters = {h.name: storage.dtensor(h, value(h)) for h in held}
    return RankState({**parameters, **{name: tensor.detach() for name, tensor in further.items()}})


def is_sharded(state: Mapping[str, object]) -> bool:
    """Whether it is a rank's part; else whole tensors."""
    return any(isinstance(value, DTensor) for value in state.values())


def load_model_state(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copies values into the views; WeightsError, on every rank and before anything is changed, where they don't fit
    on any."""
    values = together(lambda: fitting(own, given))
    with torch.no_grad():
        for name, value in values.items():
            local(own[name]).copy_(value)


def fitting(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of each value, copied: what is loaded may be views of what is there."""
    if not isinstance(given, Mapping):
        raise WeightsError(f"a state of type {type(given).__name__}", "it is no mapping of tensors", OF_THIS_PLAN)
    missing, further = sorted(own.keys() - given.keys()), sorted(map(str, given.keys() - own.keys()))
    if missing or further:
        said = [f"it lacks {', '.join(missing[:3])}"] if missing else []
        said += [f"{', '.join(further[:3])} isn't in this rank's"] if further else []
        raise WeightsError("the state", " and ".join(said), OF_THIS_PLAN)
    for name, here in own.items():
        value = given[name]
        if not isinstance(value, Tensor):
            raise WeightsError(f"{name} of type {type(value).__name__}", "it is no tensor", OF_THIS_PLAN)
        if described(value) != described(here):
            raise WeightsError(f"{name}: {described(value)}", f"this rank has {described(here)}", OF_THIS_PLAN)
    return {name: local(given[name].detach()).clone() for name in own}


def described(value: Tensor) -> str:
    where = f", {value.placements} on {value.device_mesh}" if isinstance(value, DTensor) else ""
    return f"{tuple(value.shape)} {value.dtype}{where}"


class OptimizerState:
    """What the optimizer's ``state_dict`` and ``load_state_dict`` hold beside torch's: names, and the program's own.

    steps   reads the program's count of steps, ``count`` sets it
    """

    def __init__(
        self,
        optimizer: Optimizer,
        updates: Updates,
        held: Sequence[ShardedParameter],
        steps: Callable[[], int],
        count: Callable[[int], object],
    ) -> None:
        self.optimizer, self.updates, self.steps, self.count = optimizer, updates, steps, count
        named = {h.updated: h.name for h in held}
        self.names = [named[p] for group in optimizer.param_groups for p in group["params"]]
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.coming: dict[str, Any] = {}
        optimizer.register_state_dict_post_hook(self.told)
        optimizer.register_load_state_dict_pre_hook(self.taken)
        optimizer.register_load_state_dict_post_hook(self.loaded)
        self.load = optimizer.load_state_dict
        optimizer.load_state_dict = self.load_state_dict  # type: ignore[method-assign]

    def told(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        parts = {name: dict(part.state_dict()) for name, part in self.updates.parts.items()}
        return state | {NAMES: list(self.names), PROGRAM: {"steps": self.steps(), **parts}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which copies what it is given before it asks the hooks, and so fails on what is no mapping."""
        together(lambda: self.check(state_dict))
        self.load(state_dict)

    def taken(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self.coming = state[PROGRAM]
        copies = {
            number: {name: v.clone() if isinstance(v, Tensor) else v for name, v in fields.items()}
            for number, fields in state["state"].items()
        }  # torch keeps the very tensors, which the next update would change for their owner
        return {"state": copies, "param_groups": state["param_groups"]}

    def check(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or not {"state", "param_groups", NAMES, PROGRAM} <= set(state):
            raise WeightsError("the optimizer's state", "it isn't one of a program's optimizer", OF_THIS_OPTIMIZER)
        for key in (key for key in ("state", PROGRAM) if not isinstance(state[key], Mapping)):
            said = f"its {key} is of type {type(state[key]).__name__}, no mapping"
            raise WeightsError("the optimizer's state", said, OF_THIS_OPTIMIZER)
        if list(state[NAMES]) != self.names:
            odd = sorted(set(state[NAMES]) ^ set(self.names))
            said = f"it is of other parameters, or has them in another order: {', '.join(odd[:3]) or 'their order'}"
            raise WeightsError("the optimizer's state", said, OF_THIS_OPTIMIZER)
        each = [[(g.get("name"), len(g["params"])) for g in groups] for groups in (state["param_groups"], self.groups)]
        if each[0] != each[1]:
            said = f"its groups and how many parameters they have are {each[0]}, this plan's {each[1]}"
            raise WeightsError("the optimizer's state", said, "plan with the same groups")
        lacking = sorted(set(self.updates.parts) ^ (set(state[PROGRAM]) - {"steps"}))
        if lacking:
            said = f"only one of it and this plan has a {lacking[0]}"
            raise WeightsError("the optimizer's state", said, "plan with the precision and schedule that it had")
        for number, fields in state["state"].items():
            if number not in range(len(self.names)):
                raise WeightsError("the optimizer's state", f"it has a parameter {number!r}", OF_THIS_OPTIMIZER)
            self.check_fields(number, fields)

    def check_fields(self, number: int, fields: Mapping[str, Any]) -> None:
        """Of one parameter: what has an element for each of its own lies as it does."""
        parameter, name = self.parameters[number], self.names[number]
        known = self.optimizer.state.get(parameter, {})
        for field, value in fields.items():
            here = known.get(field)
            like = here if isinstance(here, Tensor) else parameter if value_of_each(value, parameter) else None
            if isinstance(value, Tensor) and like is not None and shape_and_place(value) != shape_and_place(like):
                said = f"{shape_and_place(value)}, this rank has {shape_and_place(like)}"
                raise WeightsError(f"{field} of {name}", said, OF_THIS_OPTIMIZER)

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def loaded(self, optimizer: Optimizer) -> None:
        self.count(int(self.coming["steps"]))
        rates = [group["lr"] for group in self.groups]
        for name, part in self.updates.parts.items():
            part.load_state_dict(self.coming[name])
        for group, rate in zip(self.groups, rates, strict=True):  # as they were, also where a script has set them
            group["lr"] = rate


def value_of_each(value: object, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and (isinstance(value, DTensor) or value.ndim == parameter.ndim)


def shape_and_place(value: Tensor) -> str:
    where = f" {value.placements}" if isinstance(value, DTensor) else ""
    return f"{tuple(value.shape)}{where}"
