"""What a model of the table is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tests.bench.architectures.architecture import Architecture

Batch = Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...]
Made = tuple[nn.Module, Batch, Callable | None]
NOISE = 0.05  # as in ``make zoo``: no bias is zero, no norm's scale one


@dataclass(frozen=True)
class Brought:
    """A model with its batch of eight rows and its loss.

    family  where it comes from: a library, or "PyTorch" for what is written with torch alone
    """

    name: str
    family: str
    make: Callable[[], Made]

    def made(self) -> Made:
        """The same values each time."""
        torch.manual_seed(0)
        return self.make()


def noisy(module: nn.Module) -> nn.Module:
    """In training, with every floating parameter a little off what its constructor sets."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=NOISE)
    return module.train()


def of_transformers(architecture: Architecture) -> Brought:
    """A model of transformers by its configuration."""

    def make() -> Made:
        return architecture.module(), architecture.example(), None

    return Brought(architecture.name, "transformers", make)
