"""Recipes of whole modules, and modules made of recipes."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from autoplan.errors import WeightsError
from autoplan.ir.start import EMPTY, InitRecipe
from autoplan.trace.initialise.constructor_recorder import Recorder, Unrecordable, key_of, recording
from autoplan.trace.initialise.recipe_check import described, named_tensors, with_values
from autoplan.trace.initialise.replay import replay


def record(model: nn.Module) -> InitRecipe:
    """How the model is initialised under a seed: as its constructor does, for one of transformers, else as its
    submodules' ``reset_parameters`` do. What neither fills is listed in ``missing``; the module is left alone."""
    return constructor_recipe(model) or resets_recipe(model)


def constructor_recipe(model: nn.Module) -> InitRecipe | None:
    """Of a transformers model, made again from a copy of its configuration; None for any other, and where what is
    made then isn't such a model or can't be recorded."""
    return recorded(model, lambda: constructed_again(model)) if of_transformers(model) else None


def resets_recipe(model: nn.Module) -> InitRecipe:
    """What ``torch.manual_seed(seed)`` and then ``reset_parameters`` of each submodule, in the order of ``modules()``,
    make of it; buffers on a real device keep their values."""
    nothing = InitRecipe((), (), (), tuple(name for name, _ in named_tensors(model)))
    return recorded(model, lambda: reset_again(model)) or nothing


def recorded(model: nn.Module, make: Callable[[], nn.Module]) -> InitRecipe | None:
    try:
        with recording() as recorder:
            twin = make()
    except (Unrecordable, TypeError, NotImplementedError):
        return None
    return recipe_of(twin, recorder) if described(model) == described(twin) else None


def of_transformers(model: nn.Module) -> bool:
    """Whether a model's class is one of transformers' or derives from one: made by its class from a configuration."""
    bases = ((base.__module__.split(".")[0], base.__name__) for base in type(model).__mro__)
    return ("transformers", "PreTrainedModel") in bases and hasattr(getattr(model, "config", None), "to_dict")


def constructed_again(model: Any) -> nn.Module:
    """In the dtype that it has now, as from_config makes one of that dtype."""
    before, now = torch.get_default_dtype(), getattr(model, "dtype", None)
    torch.set_default_dtype(now if now in (torch.float16, torch.bfloat16, torch.float64) else before)
    try:
        return type(model)(copy.deepcopy(model.config))
    finally:
        torch.set_default_dtype(before)


def reset_again(model: nn.Module) -> nn.Module:
    """A copy with fresh parameters, each submodule reset; buffers on a real device keep their values."""

    def value(tensor: torch.Tensor) -> torch.Tensor:
        fresh = tensor.is_meta or isinstance(tensor, nn.Parameter)
        return torch.empty(tensor.shape, dtype=tensor.dtype) if fresh else tensor.detach().clone()

    twin = with_values(model, value)
    for module in twin.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            with torch.no_grad():
                reset()
    return twin


def recipe_of(twin: nn.Module, recorder: Recorder) -> InitRecipe:
    """The record of a model that was made under it."""
    known = {name: recorder.names.get(key_of(t)) or literal_of(recorder, t) for name, t in named_tensors(twin)}
    written = {recorder.root(step.out) for step in recorder.steps if step.op != EMPTY}
    tensors = [(name, found) for name, found in known.items() if found and recorder.root(found) in written]
    missing = [name for name in known if name not in dict(tensors)]
    return InitRecipe(tuple(recorder.steps), tuple(recorder.views.values()), tuple(tensors), tuple(missing))


def literal_of(recorder: Recorder, tensor: torch.Tensor) -> str | None:
    """A tensor that no operator made, by its values where they are few."""
    try:
        return recorder.name(tensor)
    except Unrecordable:
        return None


def unfilled_names(model: nn.Module) -> tuple[str, ...]:
    """What lies on the meta device and neither a constructor nor a reset_parameters fills."""
    lacking = [name for name, value in named_tensors(model) if value.is_meta]
    missing = set(record(model).missing) if lacking else set()
    return tuple(name for name in lacking if name in missing)


def init_model(model: nn.Module, seed: int, otherwise: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
    """A copy of the model on the CPU, to compare a program with: its own values, and where those lie on the meta
    device some under the seed.

    otherwise  values of what nothing else fills; any of these names may be among them
    WeightsError for a tensor on the meta device that nothing fills.
    """
    twin = with_values(model, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
    tensors, own = dict(named_tensors(twin)), dict(named_tensors(model))
    with torch.no_grad():
        for name, value in own.items():
            if not value.is_meta:
                tensors[name].copy_(value)
        lacking = [name for name, value in own.items() if value.is_meta]
        for name, value in meta_values(lacking, model, seed, otherwise or {}):
            tensors[name].copy_(value)
    return twin


def meta_values(
    names: Sequence[str], model: nn.Module, seed: int, otherwise: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """What lies on the meta device, as the model's recipe draws it; what it lacks is taken from ``otherwise``."""
    recipe = record(model) if names else InitRecipe((), (), (), ())
    missing = [name for name in names if name in recipe.missing]
    unknown = [name for name in missing if name not in otherwise]
    if unknown:
        cause = "it is on the meta device, and no reset_parameters fills it, nor a constructor that could be run again"
        raise WeightsError(unknown[0], cause, "build the model on the CPU, or give its module a reset_parameters")
    yield from ((name, otherwise[name]) for name in missing)
    yield from replay(recipe, seed, [name for name in names if name not in missing])
