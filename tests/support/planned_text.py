"""A small model planned anew, and its plan as the text of the folder's file."""

from __future__ import annotations

import torch
from torch import nn

import autoplan
from autoplan.export.folder import plan_text
from autoplan.ir.record import PlanRecord


class Layer(nn.Module):
    """Two readers of one value, so that trees of redistributions are among what is decided."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate, self.down = (
            nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.norm(x)
        return x + self.down(self.gate(n).relu() * self.up(n))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.layers = nn.Sequential(*(Layer() for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.first(x))


def record_of(cluster: str) -> PlanRecord:
    """Planned anew."""
    batch = (torch.zeros(4, 16), torch.zeros(4, 64))
    with torch.device("meta"):
        module = Stack()
    return autoplan.parallelize(module, cluster, batch, loss_fn=nn.functional.mse_loss, effort="fast").record


def text_of(cluster: str) -> str:
    return plan_text(record_of(cluster), "the plan")
