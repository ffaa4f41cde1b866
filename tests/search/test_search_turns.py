"""Chains of few layers whose kinds take turns: more memory makes no plan slower."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autoplan import ClusterSpec, Parallelism, Training
from tests.support.planning import parallelize_alone

WIDTH, TIGHT = 256, 60 << 20


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.value, self.out = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.out(torch.sigmoid(self.gate(y)) * torch.tanh(self.value(y)))


class InTurns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 64)
        self.layers = nn.ModuleList([Gated() if i % 3 == 2 else Wide() for i in range(12)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return ((self.last(x) - y) ** 2).mean()


def step_s(memory_bytes: int | None) -> float:
    batch = {name: torch.zeros(16, 256, 64) for name in ("x", "y")}
    sizes = Parallelism(dp=1, tp=1, pp=4, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2)
    plan = parallelize_alone(
        InTurns(), ClusterSpec(1, 4, "a100-sxm-40gb", memory_bytes=memory_bytes), batch, parallelism=sizes,
        effort="fast", training=Training(compile=False),
    )  # fmt: skip
    return plan.predicted.step_time_s


def test_few_layers_in_turns_are_cut_no_worse_with_more_memory() -> None:
    assert step_s(None) <= step_s(TIGHT) * (1 + 1e-9)
