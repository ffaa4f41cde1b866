"""A plan that is asked what another batch or cluster would change."""

from __future__ import annotations

import torch
from torch import nn

import autoplan
from autoplan import Plan


class Rows(nn.Module):
    """Rows of 16 features, three layers deep."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.layers(x) - target).pow(2).mean()


def planned(rows: int = 8, cluster: str = "1x4 cpu", **options: object) -> Plan:
    return autoplan.parallelize(Rows(), cluster, (torch.zeros(rows, 16), torch.zeros(rows, 16)), **options)  # type: ignore[arg-type]
