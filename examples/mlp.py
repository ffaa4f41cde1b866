"""A plain nn.Module: what autoplan takes as it is.

    autoplan plan --model examples/mlp.py:make_model --config width=256 --cluster-spec "1x4 cpu" --batch 64 --verify
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

INPUTS, CLASSES = 64, 10


class Residual(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, width)
        self.blocks = nn.ModuleList(Residual(width, 4 * width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_model(width: int = 128, depth: int = 4) -> nn.Module:
    """The model; --config sets these arguments."""
    return Classifier(width, depth)


def example_inputs(batch: int = 32) -> tuple[torch.Tensor, ...]:
    """One step's tensors: forward's first, then the loss function's targets."""
    return torch.zeros(batch, INPUTS), torch.zeros(batch, dtype=torch.int64)


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)
