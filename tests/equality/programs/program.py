"""A program as data, and as a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One operator.

    op          a key of APPLY
    operands    earlier values: 0 is the activation that enters, then the results of the steps
    args        its further arguments
    parameters  shapes of the parameters that it has for itself, which follow the operands
    """

    op: str
    operands: tuple[int, ...]
    args: tuple[object, ...] = ()
    parameters: tuple[Shape, ...] = ()

    def __str__(self) -> str:
        weights = [f"weight{list(shape)}" for shape in self.parameters]
        return f"{self.op}({', '.join([*(f'v{i}' for i in self.operands), *weights, *map(repr, self.args)])})"


@dataclass(frozen=True)
class Program:
    """Steps on an activation, as often as ``layers`` says with parameters of their own, and a loss of what comes out.

    rows, shape  of the activation: rows of the batch, then these dims
    ids     where not 0, the activation is looked up in a table of so many rows in place of entering
    joins   how each value that no step reads enters the loss: keys of JOINS, taken in turn
    """

    seed: int
    rows: int
    shape: Shape
    ids: int
    steps: tuple[Step, ...]
    layers: int
    joins: tuple[str, ...]

    @property
    def loose(self) -> list[int]:
        """The values that no step reads."""
        read = {i for step in self.steps for i in step.operands}
        return [i for i in range(len(self.steps) + 1) if i not in read]

    def __str__(self) -> str:
        entering = f"embedding({self.ids} rows)" if self.ids else "input"
        lines = [f"v0 = {entering} {[self.rows, *self.shape]}"]
        lines += [f"v{i} = {step}" for i, step in enumerate(self.steps, 1)]
        again = f", {self.layers} times" if self.layers > 1 else ""
        return "\n".join([*lines, f"loss of {', '.join(f'v{i}' for i in self.loose)} by {self.joins}{again}"])


APPLY: dict[str, Callable[..., Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "sin": torch.sin,
    "relu": F.relu,
    "abs": torch.abs,
    "neg": torch.neg,
    "square": torch.square,
    "exp": lambda x: torch.exp(torch.tanh(x)),
    "affine": lambda x, a, b: x * a + b,
    "clamp": lambda x, low, high: torch.clamp(x, low, high),
    "scale": lambda x, w: x * w,
    "shift": lambda x, w: x + w,
    "linear": F.linear,
    "linear_bias": F.linear,
    "matmul": torch.matmul,
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "rms_norm": lambda x, w: F.rms_norm(x, x.shape[-1:], w),
    "sum": lambda x, dims, keep: x.sum(dims, keepdim=keep),
    "mean": lambda x, dims, keep: x.mean(dims, keepdim=keep),
    "amax": lambda x, dims, keep: x.amax(dims, keepdim=keep),
    "logsumexp": lambda x, dims, keep: x.logsumexp(dims, keepdim=keep),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: x.permute(dims),
    "slice": lambda x, dim, start, stop: x.narrow(dim, start, stop - start),
    "select": lambda x, dim, index: x.select(dim, index),
    "expand": lambda x, dim, size: x.unsqueeze(dim).expand(*x.shape[:dim], size, *x.shape[dim:]),
    "mask": lambda x, value: x.masked_fill(torch.ones(x.shape[-2:]).tril() == 0, value),
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "divide": lambda a, b: a / (1 + b * b),
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "product": lambda a, b: a @ b.transpose(-1, -2),
    "cat": lambda a, b, dim: torch.cat((a, b), dim),
    "stack": lambda a, b, dim: torch.stack((a, b), dim),
}
KINKED = ("relu", "abs", "clamp", "maximum", "where", "amax")
"""Operators whose gradient jumps: where an operand is at the jump up to rounding, no two ways to compute it agree."""

JOINS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of squares": lambda x: x.square().mean(),
    "mean": lambda x: torch.sin(x).mean(),
    "sum": lambda x: (x * x).sum() * 0.01,
    "rows": lambda x: (x.reshape(x.shape[0], -1).mean(-1) if x.dim() else x).square().sum(),
}


def apply(step: Step, operands: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    return APPLY[step.op](*operands, *parameters, *step.args)


def run(steps: Sequence[Step], entering: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Every value, ``parameters`` in the order of the steps."""
    values, remaining = [entering], iter(parameters)
    for step in steps:
        own = [next(remaining) for _ in step.parameters]
        values.append(apply(step, [values[i] for i in step.operands], own))
    return values


class Layer(nn.Module):
    """The steps once; what is loose is a mean over all but rows, added to what entered."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.steps, self.loose = program.steps, program.loose
        shapes = [shape for step in program.steps for shape in step.parameters]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> list[Tensor]:
        values = run(self.steps, x, list(self.weights))
        return [values[i] for i in self.loose]

    def joined(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        for value in self(x):
            row = value.reshape(rows, -1).mean(-1) if value.dim() > 1 else value
            x = x + torch.tanh(row).reshape(rows, *(1 for _ in x.shape[1:]))
        return x


class Chained(nn.Module):
    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.joined(x)


class Module(nn.Module):
    """The program as a user would write it; its parameters are drawn from the seed."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.table = nn.Parameter(torch.empty(program.ids, program.shape[-1])) if program.ids else None
        if program.layers > 1:
            self.layers = nn.ModuleList(Chained(Layer(program)) for _ in range(program.layers))
        else:
            self.body = Layer(program)
        generator = torch.Generator().manual_seed(program.seed)
        for parameter in self.parameters():
            parameter.data = drawn(tuple(parameter.shape), generator)

    def forward(self, x: Tensor) -> Tensor:
        h = F.embedding(x, self.table) if self.table is not None else x
        if self.program.layers > 1:
            for layer in self.layers:
                h = layer(h)
            outputs = [h]
        else:
            outputs = self.body(h)
        joins = self.program.joins
        losses = [JOINS[joins[i % len(joins)]](value) for i, value in enumerate(outputs)]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def drawn(shape: Shape, generator: torch.Generator) -> Tensor:
    """A parameter whose products neither vanish nor explode."""
    values = torch.randn(shape, generator=generator)
    return values * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.3 * values


def batch_of(program: Program) -> dict[str, Tensor]:
    """The rows that enter."""
    generator = torch.Generator().manual_seed(program.seed + 1)
    if program.ids:
        return {"x": torch.randint(program.ids, (program.rows, *program.shape[:-1]), generator=generator)}
    return {"x": torch.randn((program.rows, *program.shape), generator=generator)}
