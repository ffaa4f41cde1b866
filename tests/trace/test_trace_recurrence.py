"""Loops over a sequence in the trace: steps of a recurrence and what is computed of each become operators over all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret
from tests.support.traced_loops import ops, traced_equal

torch.set_num_threads(1)

ROWS, LENGTH, WIDTH, STATES = 2, 5, 4, 3


def scanned(factor: Tensor, added: Tensor, read: Tensor) -> Tensor:
    """As a state-space model has it: a state from zeros, read by a product with a vector of the place."""
    state, found = torch.zeros(ROWS, WIDTH, STATES), []
    for at in range(LENGTH):
        state = factor[:, :, at] * state + added[:, :, at]
        found.append(torch.matmul(state, read[:, at].unsqueeze(-1))[:, :, 0])
    return torch.stack(found, dim=-1)


def gated(factor: Tensor, added: Tensor, read: Tensor) -> Tensor:
    """Turned the other way round, begun by what is added first, and read element by element."""
    states = [added[:, :, 0]]
    for at in range(1, LENGTH):
        states.append(added[:, :, at] + states[-1] * factor[:, :, at])
    return torch.stack([torch.tanh(s.sum(-1, keepdim=True) - 1.0) * s.transpose(1, 2).mean(1)[..., None]
                        for s in states], 1)  # fmt: skip


def backwards(factor: Tensor, added: Tensor, read: Tensor) -> Tensor:
    state = torch.zeros(ROWS, WIDTH, STATES)
    for at in reversed(range(LENGTH)):
        state = factor[:, :, at] * state + added[:, :, at]
    return state


def begun(factor: Tensor, added: Tensor, read: Tensor) -> Tensor:
    state = torch.ones(ROWS, WIDTH, STATES)
    for at in range(LENGTH):
        state = factor[:, :, at] * state + added[:, :, at]
    return state


class Loop(nn.Module):
    def __init__(self, loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loop, self.weight = loop, nn.Parameter(torch.rand(WIDTH, STATES))

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        dt = x.transpose(1, 2)[..., None]
        found = self.loop(torch.exp(-self.weight[None, :, None] * dt.abs()), dt * self.weight[None, :, None], read)
        return (found * torch.arange(found.numel()).reshape(found.shape)).sum()


def traced(loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Model:
    torch.manual_seed(0)
    return traced_equal(Loop(loop), {"x": torch.randn(ROWS, LENGTH, WIDTH), "read": torch.randn(ROWS, LENGTH, STATES)})


@pytest.mark.parametrize("loop", [scanned, gated])
def test_a_loop_is_one_recurrence_and_one_computation(loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    found = ops(traced(loop))
    assert found.count("autoplan.recurrence") == 1
    assert "aten.cat.default" not in found and found.count("aten.select.int") <= 1


@pytest.mark.parametrize("loop", [backwards, begun])
def test_another_loop_stays_as_it_is_written(loop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    found = ops(traced(loop))
    assert "autoplan.recurrence" not in found
    assert found.count("aten.select.int") == 2 * LENGTH


def test_what_is_put_together_of_unlike_parts_stays() -> None:
    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(2))

        def forward(self, x: Tensor) -> Tensor:
            x = x * self.weight
            return (torch.stack([-x[..., 1], x[..., 0]], -1) * torch.arange(2)).sum()

    module, x = Rotated(), torch.randn(ROWS, 2)
    model = trace(module, (x,), training=True)
    assert "aten.cat.default" in ops(model)
    torch.testing.assert_close(interpret(model, {"weight": module.weight}, {"x": x}), module(x))
