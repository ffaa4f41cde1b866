"""What attacks on the model are written with: small models, traced and held against the module itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.attacks.attack import equal
from tests.support.interpret import interpret

Batch = tuple[Tensor, ...]
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 8, generator=GENERATOR), torch.randn(4, 8, generator=GENERATOR)


class Two(nn.Module):
    """Two linear layers; ``body`` is what most attacks replace."""

    def __init__(self, body: Callable[[Two, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.a, self.b, self.body = nn.Linear(8, 8), nn.Linear(8, 8), body

    def forward(self, x: Tensor) -> Any:
        y = self.b(F.gelu(self.a(x))) if self.body is None else self.body(self, x)
        return y.square().mean() if isinstance(y, Tensor) else y


class Scores(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)))


class Layers(nn.Module):
    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Norm(nn.Module):
    """Its statistics are others than those of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.norm(5 + 3 * torch.randn(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x))).square().mean()


def doubled(gradient: Tensor) -> Tensor:
    return 2 * gradient


def hooked(register: Callable[[Two], object]) -> Two:
    module = Two()
    register(module)
    return module


def traced(module: nn.Module, *batch: Tensor, loss_fn: Callable | None = None) -> Model:
    return trace(module, batch or (X,), loss_fn=loss_fn, training=True)


def ops(model: Model) -> list[str]:
    return [node.op for segment in model.segments for node in model.blocks[segment.block].nodes]


def as_one_device(module: nn.Module, *batch: Tensor, loss_fn: Callable | None = None) -> str:
    """The traced graph's loss and gradients, and what it leaves in buffers, against the module's own."""
    batch = batch or (X,)
    model = traced(module, *batch, loss_fn=loss_fn)
    leaves = {n: p.detach().clone().requires_grad_(p.requires_grad) for n, p in module.named_parameters()}
    buffers = {n: value.clone() for n, value in module.named_buffers()}
    found = interpret(model, {**leaves, **buffers}, dict(zip((v.name for v in model.batch), batch, strict=True)))
    output = module(batch[0]) if loss_fn is not None else module(*batch)
    expected = loss_fn(output, *batch[1:]) if loss_fn is not None else loss_in(output)
    found.backward()
    module.zero_grad()
    expected.backward()
    errors = {n: gap(leaves[n].grad, p.grad) for n, p in module.named_parameters()}
    errors |= {n: gap(buffers[n].double(), value.double()) for n, value in module.named_buffers()}
    worst = max(errors, key=lambda name: errors[name])
    with torch.no_grad():
        loss = abs(float(found - expected)) / abs(float(expected))
    return equal(max(loss, errors[worst]) < 1e-5, f"loss to {loss:.0e}, {worst} to {errors[worst]:.0e}")


def loss_in(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output.loss]
    return next(part for part in parts if part.ndim == 0)


def gap(found: Tensor | None, expected: Tensor | None) -> float:
    if found is None or expected is None:
        return 0.0 if found is expected else 1.0
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))
