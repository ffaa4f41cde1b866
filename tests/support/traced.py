"""A small module traced, its graph computing what it does itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret


def assert_traced(module: nn.Module) -> Model:
    """The graph of a module from four rows of eight numbers to as many: its loss is the module's."""
    batch = (torch.randn(4, 8), torch.randn(4, 8))
    model = trace(module, batch, loss_fn=F.mse_loss, training=True)
    got = interpret(model, dict(module.named_parameters()), dict(zip(("x", "target"), batch, strict=True)))
    torch.testing.assert_close(got, F.mse_loss(module(batch[0]), batch[1]))
    return model
