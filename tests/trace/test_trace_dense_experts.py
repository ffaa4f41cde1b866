"""Experts written as products of all tokens: recognised by what is computed, and computed of those that chose them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.errors import ParallelismError
from autoplan.ir.graph import Model, Node
from autoplan.rules.nn.expert_capacity import with_capacity
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret
from tests.support.mixtures import llama4, tokens

torch.set_num_threads(1)

ROWS, LENGTH, WIDTH, INNER, EXPERTS = 2, 6, 8, 5, 4
Activation = Callable[[Tensor, Tensor], Tensor]


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return up * F.silu(gate)


class Dense(nn.Module):
    """As Llama 4 has it, with what may differ.

    rest      the score of an expert that a token didn't choose
    halves    the gate and the up product are the halves of one
    """

    def __init__(
        self, choices: int = 1, activation: Activation = gated, rest: float = float("-inf"),
        weighted: Callable[[Tensor], Tensor] = torch.sigmoid, halves: bool = True, biased: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.choices, self.activation, self.rest, self.weighted = choices, activation, rest, weighted
        self.halves, self.biased, self.router = halves, biased, nn.Linear(WIDTH, EXPERTS)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER))
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER))
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER if halves else 2 * INNER, WIDTH))
        self.bias = nn.Parameter(torch.randn(EXPERTS, 1, WIDTH))

    def weights(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        values, index = torch.topk(logits, self.choices, dim=1)
        return self.weighted(torch.full_like(logits, self.rest).scatter_(1, index, values))

    def experts(self, scaled: Tensor) -> Tensor:
        first = torch.bmm(scaled, self.gate_up)
        gate, up = first.chunk(2, dim=-1) if self.halves else (first, torch.bmm(scaled, self.up))
        given = torch.bmm(self.activation(gate, up), self.down)
        return given + self.bias if self.biased else given

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        weights = self.weights(flat)
        scaled = flat.repeat(EXPERTS, 1) * weights.transpose(0, 1).reshape(-1, 1)
        return self.experts(scaled.view(EXPERTS, -1, WIDTH)).sum(dim=0).reshape(x.shape).square().mean()


class Plain(Dense):
    """The same in other words: no row of rows, one product alone."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        scaled = self.weights(flat).t().unsqueeze(-1) * flat.unsqueeze(0).expand(EXPERTS, -1, -1)
        return (F.relu(scaled @ self.gate_up).square() @ self.down).sum(0).square().mean()


def mixtures(model: Model) -> list[Node]:
    return [node for block in model.blocks for node in block.nodes if node.op == "autoplan.experts"]


def traced(module: nn.Module) -> tuple[Model, dict[str, Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, LENGTH, WIDTH)
    return trace(module, {"x": x}, training=True, dtype="float64"), {"x": x}


def equal(module: nn.Module) -> Model:
    """The trace, whose loss and gradients are the module's in float64."""
    model, batch = traced(module)
    module, given = module.double(), {name: value.double() for name, value in batch.items()}
    values = dict(module.state_dict(keep_vars=True))
    wanted = torch.autograd.grad(module(**given), list(module.parameters()), allow_unused=True)
    found = torch.autograd.grad(interpret(model, values, given), list(module.parameters()), allow_unused=True)
    for name, a, b in zip(dict(module.named_parameters()), found, wanted, strict=True):
        assert (a is None) == (b is None), name
        assert a is None or torch.allclose(a, b, rtol=1e-12, atol=1e-12), name
    return model


@pytest.mark.parametrize("choices", [1, 2, EXPERTS])
@pytest.mark.parametrize("halves", [True, False])
def test_experts_of_all_tokens_are_those_of_the_tokens_that_chose_them(choices: int, halves: bool) -> None:
    (mixture,) = mixtures(equal(Dense(choices, halves=halves)))
    assert mixture.args[6:] == ("mul(up, silu(gate))", True, True)
    assert mixture.type.shape == (ROWS, LENGTH * choices, WIDTH)


@pytest.mark.parametrize("module", [
    Plain(2, halves=False), Plain(1, halves=False, rest=0.0, weighted=torch.relu),
    Dense(2, weighted=torch.exp), Dense(1, lambda gate, up: F.gelu(gate, approximate="tanh") * up),
])  # fmt: skip
def test_other_words_weights_and_activations_are_recognised(module: nn.Module) -> None:
    assert len(mixtures(equal(module))) == 1


@pytest.mark.parametrize("module", [
    Dense(1, rest=-5.0), Dense(1, rest=0.0), Dense(1, biased=True), Dense(1, lambda gate, up: gate.exp() * up.cosh()),
    Dense(1, lambda gate, up: F.silu(gate) * up + 1),
])  # fmt: skip
def test_what_an_expert_gives_for_other_tokens_too_stays_as_it_is(module: nn.Module) -> None:
    assert not mixtures(equal(module))


@pytest.mark.parametrize("choices", [1, 2])
def test_llama_4_has_a_mixture_in_each_layer(choices: int) -> None:
    model = trace(llama4(choices), tokens(), training=True)
    (mixture,) = mixtures(model)  # of the block that both layers are
    assert mixture.module.endswith("feed_forward")
    assert with_capacity(model, 1.5, "position") is not model


def test_choices_without_scores_of_their_own_are_not_dropped_by_score() -> None:
    with pytest.raises(ParallelismError, match=r"expert_dropping='score'.*no scores"):
        with_capacity(trace(llama4(1), tokens(), training=True), 1.5, "score")
