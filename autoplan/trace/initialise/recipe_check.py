"""Whether a recipe gives what the model's author makes: bit for bit, where that fits this machine."""

import copy
import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from autoplan.ir.start import InitRecipe
from autoplan.trace.initialise.lifting import plain_tensors
from autoplan.trace.initialise.replay import replay

Module = TypeVar("Module", bound=nn.Module)
SHARE = 0.25  # of the free memory that a model may take that is made for the comparison alone
MOST_ELEMENTS = 2**29  # seconds: each is drawn about four times, at some 6 ns


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers, a tied one under its first name."""
    return [*model.named_parameters(), *model.named_buffers()]


def with_values(model: Module, value: Callable[[torch.Tensor], torch.Tensor]) -> Module:
    """A copy whose parameters and buffers have the ``value`` of each; tied ones stay tied."""
    memo: dict[int, object] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        new = value(tensor)
        memo[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    memo |= {id(tensor): tensor for tensor in plain_tensors(model)}
    return copy.deepcopy(model, memo)


def described(model: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in named_tensors(model)]


def too_large(model: nn.Module) -> str:
    """Why a model, whose tensors may be without values, isn't made here to be compared; "" where it can be."""
    tensors = [tensor for _, tensor in named_tensors(model)]
    elements, needed_bytes = sum(t.numel() for t in tensors), sum(t.numel() * t.itemsize for t in tensors)
    if elements > MOST_ELEMENTS:
        return f"it has {elements:,} elements, and up to {MOST_ELEMENTS:,} are compared"
    room_bytes = int(SHARE * free_bytes())
    if needed_bytes > room_bytes:
        return f"it takes {needed_bytes:,} bytes, more than the {SHARE:.0%} of this machine's free memory that it may"
    return ""


def free_bytes() -> int:
    """Memory that this machine has to give, caches that it would drop included."""
    try:
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def differing(recipe: InitRecipe, made: nn.Module, seed: int) -> str | None:
    """The first parameter or buffer for which the recipe gives other values than were made; None where all are equal.

    Each half is asked for alone, so that what ranks do with the draws of others is compared too.
    """
    tensors, names = dict(named_tensors(made)), [name for name, _ in recipe.tensors]
    for half in (names[::2], names[1::2]):
        for name, value in replay(recipe, seed, half):
            if not same_bits(value, tensors[name]):
                return name
    return None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    plain = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*plain)
