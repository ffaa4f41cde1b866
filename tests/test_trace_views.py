"""Views in the trace: what was merged for one operator comes apart again, so that every dim of it can be split."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autoplan
from autoplan.graph import Model, Node
from autoplan.options import Parallelism
from autoplan.trace import trace
from tests.interpret import interpret

torch.set_num_threads(1)

HIDDEN, HEADS, ROWS, LENGTH = 16, 4, 8, 6


class Encoder(nn.Module):
    """torch's own encoder, and a head. Where the batch isn't first for its layers, it is turned for them."""

    def __init__(self, layers: int = 1, *, batch_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 2 * HIDDEN, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, 12)
        self.turned = not batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x.transpose(0, 1)).transpose(0, 1) if self.turned else self.encoder(x)
        return self.head(x)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, LENGTH, HIDDEN, generator=generator), torch.randn(ROWS, LENGTH, 12, generator=generator)


def nodes_of(model: Model, op: str) -> list[Node]:
    return [node for block in model.blocks for node in block.nodes if node.op == op]


def assert_equal(module: nn.Module, inputs: tuple[torch.Tensor, ...], *, mse: bool = False) -> Model:
    """The traced module has its loss and its gradients."""
    model = trace(module, inputs, loss_fn=F.mse_loss if mse else None, training=True)
    state = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
    got = interpret(model, state, dict(zip((v.name for v in model.batch), inputs, strict=True)))
    loss = F.mse_loss(module(inputs[0]), inputs[1]) if mse else module(*inputs)
    torch.testing.assert_close(got, loss)
    got.backward()
    loss.backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(state[name].grad, parameter.grad, msg=name)
    return model


class Rows(nn.Module):
    """A linear on rows that one reshape makes of a tensor of more dims, and a reshape that ends that."""

    def __init__(self, rows: tuple[int, int], after: tuple[int, ...]) -> None:
        super().__init__()
        self.fc, self.rows, self.after = nn.Linear(rows[1], 3), rows, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.relu().reshape(self.rows)).reshape(self.after).square().mean()


@pytest.mark.parametrize(
    ("shape", "rows", "after", "contracted"),
    [
        ((6, 8, 16), (48, 16), (6, 8, 3), (6, 8, 3)),
        ((6, 8, 4, 4), (48, 16), (6, 8, 3), (6, 8, 3)),  # rows and heads are merged by one reshape
        ((6, 8, 2, 2, 4), (48, 16), (6, 8, 3), (6, 8, 3)),
        ((6, 8, 32), (96, 16), (6, 8, 2, 3), (6, 8, 2, 3)),  # part of a dim is among the rows
        ((48, 4, 4), (48, 16), (6, 8, 3), (48, 3)),  # nothing but what a row holds is merged
        ((6, 4), (4, 6), (2, 2, 3), (4, 3)),  # a row begins amid another
    ],
)
def test_a_linear_keeps_the_dims_that_were_flattened_for_it(
    shape: tuple[int, ...], rows: tuple[int, int], after: tuple[int, ...], contracted: tuple[int, ...]
) -> None:
    model = assert_equal(Rows(rows, after), (torch.randn(shape),))
    (linear,) = nodes_of(model, "aten.linear.default")
    assert linear.type.shape == contracted


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_computes_what_it_did(batch_first: bool) -> None:
    model = assert_equal(Encoder(2, batch_first=batch_first), batch(), mse=True)
    assert {len(node.type.shape) for node in nodes_of(model, "aten.linear.default")} == {3}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("micro_batch", [2, 1])
def test_an_encoder_s_batch_is_split(batch_first: bool, micro_batch: int) -> None:
    module = Encoder(batch_first=batch_first)
    chosen = Parallelism(dp=4, tp=1, pp=1, micro_batch=micro_batch)
    plan = autoplan.parallelize(module, "1x4 cpu", batch(), loss_fn=F.mse_loss, parallelism=chosen)
    assert (plan.parallelism.dp, plan.parallelism.micro_batch) == (4, micro_batch)
    assert plan.verify().passed
