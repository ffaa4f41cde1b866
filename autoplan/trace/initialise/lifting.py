"""Tensors that a module keeps as plain attributes, as the buffers that they are to a program."""

import copy
from collections.abc import Iterator

import torch
from torch import nn


def plain_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors among the submodules' own attributes, and in lists and dicts there."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from tensors_in(value)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    if type(value) is torch.Tensor:
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for held in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(held)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy; of what a forward computed and left in an attribute, of which Python makes none, the numbers."""
    return copy.deepcopy(model, {id(t): t.detach().clone() for t in plain_tensors(model) if t.grad_fn is not None})


def lifted(model: nn.Module) -> nn.Module:
    """The model, or where it keeps constants in attributes a copy with the same parameters, in which they are buffers
    that no state dict has. What a forward puts there anew isn't constant: it has a graph, or a parameter's memory."""
    named = (*model.parameters(), *model.buffers())
    shared = {id(tensor.untyped_storage()) for tensor in named}
    held = [
        (path, name, value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) is torch.Tensor and not value.requires_grad and id(value.untyped_storage()) not in shared
    ]
    if not held:
        return model
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*named, *plain_tensors(model))})
    for path, name, tensor in held:
        module = twin.get_submodule(path)
        delattr(module, name)
        module.register_buffer(name, tensor, persistent=False)
    return twin
