"""Models whose first values are easily got wrong, and functions that make them in ways that are easily missed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 8


class Own(nn.Module):
    """Sets its own values, has a parameter that no reset_parameters fills, and ties two weights."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))
        self.down.weight = self.up.weight
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.randn(WIDTH) if buffer else torch.ones(WIDTH))
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.constant_(module.bias, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)) * self.scale + self.frequencies)


def batch() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, WIDTH, generator=generator), torch.randn(4, WIDTH, generator=generator)


def changed(change: Callable[[Own], None], buffer: bool = False) -> Own:
    """The model, changed by its maker afterwards."""
    model = Own(buffer)
    with torch.no_grad():
        change(model)
    return model


def by_numpy(model: Own) -> None:
    model.up.weight.copy_(torch.from_numpy(np.random.randn(WIDTH, WIDTH)))


def by_python(model: Own) -> None:
    model.scale.fill_(random.random())


def by_generator(model: Own) -> None:
    model.up.weight.normal_(generator=torch.Generator().manual_seed(5))


def through_numpy(model: Own) -> None:
    model.up.weight.numpy()[:] *= 3.0


def by_what_was_drawn(model: Own) -> None:
    if model.up.weight.abs().max().item() > 0.01:
        model.scale.mul_(2.0)


def caught(model: Own) -> None:
    """Reads what was drawn, and goes on where that can't be."""
    try:
        by_what_was_drawn(model)
    except Exception:
        model.scale.zero_()


def seeded(model: Own) -> None:
    torch.manual_seed(99)
    model.up.weight.uniform_(-1, 1)


def forked(model: Own) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        model.up.weight.normal_()
    model.scale.uniform_(0.5, 1.5)


def in_place(model: Own) -> None:
    model.up.weight.data = model.up.weight.data.t().contiguous() * 3
    model.up.weight[2:4, ::2] = 0.125
    model.scale.data.add_(torch.linspace(0, 1, WIDTH)).clamp_(max=1.0)
    model.up.bias.data[torch.randperm(WIDTH)[:3]] -= 1.0
    nn.init.sparse_(model.down.weight, 0.25)


class Calls:
    """Makes another model with every call."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Own:
        self.count += 1
        return changed(lambda model: model.scale.fill_(self.count).sum())


def on_meta() -> Own:
    with torch.device("meta"):
        return Own()


def uninitialised() -> Own:
    model = Own()
    model.scale = nn.Parameter(torch.empty(WIDTH))
    return model


def half_meta() -> Own:
    model = Own()
    model.up.to("meta")
    return model


def masked() -> Own:
    """A buffer that state dicts leave out and that is too large to be written down."""
    model = Own()
    model.register_buffer("mask", torch.full((300, 300), 0.5), persistent=False)
    model.forward = partial(masked_forward, model)  # type: ignore[method-assign]
    return model


def masked_forward(model: Own, x: Tensor) -> Tensor:
    return Own.forward(model, x) * model.get_buffer("mask").mean()


def halved() -> nn.Module:
    return Own().bfloat16()
