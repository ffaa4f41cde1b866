"""Traced loops: the graph beside the module that it was traced from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret


def traced_equal(module: nn.Module, batch: Mapping[str, Tensor]) -> Model:
    """The graph of a module with one parameter, ``weight``; it has the module's loss and its gradient."""
    model = trace(module, dict(batch), training=True)
    state = {"weight": module.weight.detach().clone().requires_grad_()}  # type: ignore[operator]
    got, expected = interpret(model, state, dict(batch)), module(**batch)
    torch.testing.assert_close(got, expected)
    got.backward()
    expected.backward()
    torch.testing.assert_close(state["weight"].grad, module.weight.grad)
    return model


def ops(model: Model) -> list[str]:
    """The operators of all blocks, in order."""
    return [node.op for block in model.blocks for node in block.nodes]
