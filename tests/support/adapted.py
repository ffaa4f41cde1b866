"""Small models whose weights are frozen, beside adapters that are trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.bench.recipes.adapters import with_adapters

WIDTH, RANK, LAYERS, ROWS = 32, 2, 4, 8


class Residual(nn.Module):
    """Two products around a gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(functional.gelu(self.up(x)))
        return result


class Stack(nn.Module):
    """Layers, and the mean square of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x * x).mean()


def adapted(targets: tuple[str, ...] = ("up",)) -> nn.Module:
    """The stack with adapters of rank ``RANK``; values as ``torch.manual_seed(0)`` gives them."""
    torch.manual_seed(0)
    return with_adapters(Stack(), targets, RANK, 2 * RANK)


def batch() -> tuple[Tensor]:
    return (torch.randn(ROWS, 3, WIDTH, generator=torch.Generator().manual_seed(1)),)


FROZEN = LAYERS * 8 * WIDTH * WIDTH
TRAINED = LAYERS * 5 * RANK * WIDTH
"""Elements of either kind where the first products alone have adapters."""
