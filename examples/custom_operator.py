"""An operator of your own, planned, proved and trained: what an extension looks like, whole.

    python examples/custom_operator.py                                  # prove the rule, plan, export to out/custom
    PYTHONPATH=examples torchrun --nproc-per-node 4 out/custom/train.py --steps 3

``torch.library.custom_op`` makes the operator, with its shapes (``register_fake``) and its gradient
(``register_autograd``); a Triton kernel is wrapped by ``torch.library.triton_op`` in the same way. One function says
how it may be split. ``check_rule`` proves that. Plans name this module, and every rank of an exported program imports
it.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

import autoplan
from autoplan import TensorType


@torch.library.custom_op("example::gated_norm", mutates_args=())
def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of x over its last dim, times a weight, times the sigmoid of a gate."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * weight * torch.sigmoid(gate)


@gated_norm.register_fake
def _(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def keep(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def gradients(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    x, gate, weight = ctx.saved_tensors
    scale, opened = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps), torch.sigmoid(gate)
    normed = x * scale
    inner = grad * weight * opened
    of_x = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
    of_gate = grad * normed * weight * opened * (1 - opened)
    of_weight = (grad * normed * opened).flatten(0, -2).sum(0)
    return of_x, of_gate, of_weight, None


gated_norm.register_autograd(gradients, setup_context=keep)


@autoplan.rule(gated_norm)
def gated_norm_rule(x: TensorType, gate: TensorType, weight: TensorType, eps: float) -> autoplan.Rule:
    """Rows and tokens split; the norm needs its whole last dim. Twice the weight is twice the result."""
    return autoplan.Rule("b s d, b s d, d -> b s d", whole="d", linear=((2,),), saved=(0, 1, 2))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """How the layer's own parameter begins; each rank begins its part so."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(gated_norm(self.up(x), self.gate(x), self.weight, 1e-5))


class Model(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x - target).square().mean()


def plan(parallelism: str | autoplan.Parallelism = "auto") -> autoplan.Plan:
    batch = {"x": torch.randn(8, 16, 32), "target": torch.randn(8, 16, 32)}
    return autoplan.parallelize(Model(), "1x4 cpu", batch, parallelism=parallelism)


def main() -> None:
    x, gate, weight = torch.randn(24, 8, 8), torch.randn(24, 8, 8), torch.randn(8)
    print(autoplan.check_rule(gated_norm, (x, gate, weight, 1e-5)))
    found = plan()
    print(found)
    print(found.verify())
    print(f"exported to {found.export(sys.argv[1] if len(sys.argv) > 1 else 'out/custom')}")


if __name__ == "__main__":
    main()
