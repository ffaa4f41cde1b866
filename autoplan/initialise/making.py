"""Recipes of whole modules, and modules made of recipes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autoplan.errors import WeightsError
from autoplan.initialise.recipe import EMPTY, InitRecipe
from autoplan.initialise.recorder import Recorder, Unrecordable, key_of, recording
from autoplan.initialise.replay import replay


def record(model: nn.Module) -> InitRecipe:
    """How the model is initialised under a seed.

    A Hugging Face model is made again from a copy of its configuration. Any other module is what
    ``torch.manual_seed(seed)`` and then ``reset_parameters`` of each submodule, in the order of ``modules()``, make
    of it. What neither fills is listed in ``missing``; the module itself is left alone.
    """
    makers: list[Callable[[], nn.Module]] = [lambda: reset_again(model)]
    if hasattr(getattr(model, "config", None), "to_dict"):
        makers.insert(0, lambda: constructed_again(model))
    for make in makers:
        try:
            with recording() as recorder:
                twin = make()
        except (Unrecordable, TypeError, NotImplementedError):
            continue
        if same_names(model, twin):
            return recipe_of(model, twin, recorder)
    return InitRecipe((), (), (), tuple(name for name, _ in named_tensors(model)))


def constructed_again(model: Any) -> nn.Module:
    return type(model)(copy.deepcopy(model.config))


def reset_again(model: nn.Module) -> nn.Module:
    """A copy with fresh parameters, each submodule reset; buffers on a real device keep their values."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype) if buffer.is_meta else buffer.detach().clone()
    twin = copy.deepcopy(model, memo)
    for module in twin.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            with torch.no_grad():
                reset()
    return twin


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers, a tied one under its first name."""
    return [*model.named_parameters(), *model.named_buffers()]


def same_names(model: nn.Module, twin: nn.Module) -> bool:
    def described(module: nn.Module) -> list[tuple[str, torch.Size]]:
        return [(name, tensor.shape) for name, tensor in named_tensors(module)]

    return described(model) == described(twin)


def recipe_of(model: nn.Module, twin: nn.Module, recorder: Recorder) -> InitRecipe:
    """What of the record the model's tensors need."""
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


def buffer_values(model: nn.Module) -> dict[str, torch.Tensor]:
    """The values of all buffers: the model's own, and where those lie on the meta device the recipe's.

    Raises WeightsError for a buffer on the meta device that nothing fills.
    """
    values = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers() if not buffer.is_meta}
    lacking = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lacking:
        values |= dict(replay(record(model), 0, lacking))
    unknown = [name for name in lacking if name not in values]
    if unknown:
        raise unfilled(unknown[0])
    return values


def unfilled(name: str) -> WeightsError:
    return WeightsError(
        name,
        "it is on the meta device, and no reset_parameters fills it, nor a constructor that could be run again",
        "build the model on the CPU, or give its module a reset_parameters",
    )


def init_model(model: nn.Module, seed: int) -> nn.Module:
    """A copy of the model on the CPU, initialised under the seed: the reference on one device.

    What the recipe is missing keeps the model's own values; WeightsError where those are on the meta device.
    """
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        empty = torch.empty(parameter.shape, dtype=parameter.dtype)
        memo[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    twin = copy.deepcopy(model, memo)
    recipe = record(model)
    tensors, own = dict(named_tensors(twin)), dict(named_tensors(model))
    with torch.no_grad():
        for name in recipe.missing:
            if own[name].is_meta:
                raise unfilled(name)
            tensors[name].copy_(own[name])
        for name, value in replay(recipe, seed):
            tensors[name].copy_(value)
    return twin
