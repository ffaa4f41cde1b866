"""A router and its experts, as transformers loops over them: what tests of such loops vary."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret

EXPERTS, HIDDEN, INNER, CHOICES, ROWS, LENGTH = 4, 8, 12, 2, 4, 5


class Expert(nn.Module):
    def __init__(self, bias: bool = False, gated: bool = False, p: float = 0.0) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, INNER, bias=bias) if gated else None
        self.up, self.down = nn.Linear(HIDDEN, INNER, bias=bias), nn.Linear(INNER, HIDDEN, bias=bias)
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(self.dropout(inner))


class Router(nn.Module):
    """What every mixture here has: the chosen experts of each token and their scores."""

    def __init__(self, **of_experts: object) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.own(**of_experts)

    def own(self, **of_experts: object) -> None:
        self.experts = nn.ModuleList(Expert(**of_experts) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, HIDDEN)
        scores, index = self.router(tokens).softmax(-1).topk(CHOICES, -1)
        return self.mixed(tokens, index, scores).view(x.shape).square().sum()

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        """transformers' manner: what a mask of one_hot's hits."""
        y = torch.zeros_like(x)
        mask = F.one_hot(index, EXPERTS).permute(2, 1, 0)
        for number in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            choice, token = torch.where(mask[number].squeeze(0))
            rows = self.experts[number[0]](x[None, token].reshape(-1, HIDDEN)) * scores[token, choice, None]
            y.index_add_(0, token, rows.to(y.dtype))
        return y


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(ROWS, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(0))}


def traced(module: nn.Module) -> Model:
    """The model, which has the module's loss and gradients."""
    model = trace(module, batch(), training=True)
    state = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
    got, loss = interpret(model, state, batch()), module(**batch())
    torch.testing.assert_close(got, loss)
    got.backward()
    loss.backward()
    for name, value in module.named_parameters():
        torch.testing.assert_close(state[name].grad, value.grad, msg=name)
    return model
