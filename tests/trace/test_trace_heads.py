"""Heads in the trace: merged with the batch for a product, or side by side in a fused projection, they come apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.ir.graph import Model, Node
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret

torch.set_num_threads(1)

ROWS, LENGTH, HEADS, WIDTH = 4, 6, 4, 3
HIDDEN = HEADS * WIDTH


class Merged(nn.Module):
    """Attention by products of [batch * heads, ..], with a bias that is added to the scores: BLOOM's manner."""

    def __init__(self, beta: float, alpha: float, bias: tuple[int, ...]) -> None:
        super().__init__()
        self.beta, self.alpha = beta, alpha
        self.project = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.bias = nn.Parameter(torch.randn(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.project(x).view(*x.shape[:2], HEADS, 3, WIDTH).unbind(3)
        q, k, v = (part.transpose(1, 2).reshape(-1, LENGTH, WIDTH) for part in parts)
        scores = self.bias.baddbmm(q, k.transpose(-1, -2), beta=self.beta, alpha=self.alpha)
        weights = F.softmax(scores.view(-1, HEADS, LENGTH, LENGTH), -1).view(-1, LENGTH, LENGTH)
        mixed = torch.bmm(weights, v).view(-1, HEADS, LENGTH, WIDTH).transpose(1, 2)
        return mixed.reshape(x.shape).square().sum()


class Shared(nn.Module):
    """All queries with one head of keys and values, projected at once: Falcon's manner."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HIDDEN, HIDDEN + 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fused = self.project(x).view(*x.shape[:2], HEADS + 2, WIDTH)
        q, k, v = fused[..., :-2, :], fused[..., [-2], :], fused[..., [-1], :]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()


def traced(module: nn.Module) -> Model:
    """The model, which has the module's loss and gradients."""
    x = torch.randn(ROWS, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(0))
    model = trace(module, {"x": x}, training=True)
    state = {key: value.detach().clone().requires_grad_() for key, value in module.named_parameters()}
    got, loss = interpret(model, state, {"x": x}), module(x)
    torch.testing.assert_close(got, loss)
    got.backward()
    loss.backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(state[name].grad, parameter.grad)
    return model


def nodes_of(model: Model) -> list[Node]:
    return [node for block in model.blocks for node in block.nodes]


@pytest.mark.parametrize(
    ("beta", "alpha", "bias"),
    [
        (1.0, 0.5, (ROWS * HEADS, 1, LENGTH)), (0.5, 1.0, (ROWS * HEADS, LENGTH, LENGTH)), (1.0, 2.0, (LENGTH,)),
        (1.0, 1.0, (1, 1, LENGTH)), (0.0, 0.5, (ROWS * HEADS, 1, 1)),
    ],
)  # fmt: skip
def test_heads_that_were_merged_with_the_batch_have_a_dim_of_their_own(
    beta: float, alpha: float, bias: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module = Merged(beta, alpha, bias)
    if beta == 0:
        module.bias.requires_grad_(False)
    products = [node for node in nodes_of(traced(module)) if node.op == "aten.matmul.default"]
    assert [node.type.shape[:2] for node in products] == [(ROWS, HEADS)] * 2


def test_a_projection_of_queries_and_one_head_of_keys_is_three() -> None:
    torch.manual_seed(0)
    model = traced(Shared())
    shapes = sorted(p.type.shape for block in model.blocks for p in block.parameters)
    assert shapes == [(WIDTH,), (WIDTH,), (WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN)]
    assert not any(node.op in ("aten.index.Tensor", "aten.slice.Tensor") for node in nodes_of(model))


class Batched(nn.Module):
    """Gate and up of every expert in one batch of products: Llama-4's manner."""

    def __init__(self, bias: tuple[int, ...] | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, HIDDEN, 2 * HIDDEN))
        self.bias = None if bias is None else nn.Parameter(torch.randn(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fused = torch.bmm(x, self.weight)
        gate, up = (fused if self.bias is None else fused + self.bias).chunk(2, dim=-1)
        return (F.silu(gate) * up).square().mean()


@pytest.mark.parametrize("bias", [None, (2 * HIDDEN,), (ROWS, 1, 2 * HIDDEN), (ROWS, 1, 1)])
def test_fused_projections_in_a_batch_come_apart_along_their_last_dim(bias: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    model = traced(Batched(bias))
    shapes = [p.type.shape for p in model.parameters if p.source == "weight"]
    whole = bias is not None and bias[-1] == 1
    assert shapes == ([(ROWS, HIDDEN, 2 * HIDDEN)] if whole else [(ROWS, HIDDEN, HIDDEN)] * 2)
