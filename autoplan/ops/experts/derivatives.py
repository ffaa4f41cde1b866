"""The derivative of each function that an activation is made of, as torch's autograd has it.

A rule takes the gradient of a call's result, that result, and the call's arguments; it gives the gradient of one
argument, in the shape of the result. The formulas, and the subgradients at kinks, are those of PyTorch's
tools/autograd/derivatives.yaml; where ATen has a backward operator, it is called.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Number = int | float
Rule = Callable[..., Tensor]
LAST = torch.iinfo(torch.int64).max  # where a slice without an end ends


def scaled(g: Tensor, factor: Number) -> Tensor:
    return g if factor == 1 else g * factor


def where(condition: Tensor, g: Tensor) -> Tensor:
    """The gradient where it passes, else zeros; a product would make NaN of infinity."""
    return torch.where(condition, g, 0.0)


def inside(self: Tensor, lower: Any, upper: Any) -> Tensor:
    """Where a value lies between bounds, tensors or numbers, these included; one of them may be None."""
    if upper is None:
        return self >= lower
    return self <= upper if lower is None else (self >= lower) & (self <= upper)


def clamp_to_min(g: Tensor, y: Tensor, self: Tensor, min: Tensor, max: Tensor | Number | None = None) -> Tensor:
    """A value at the lower bound has the gradient, not the bound; of crossed bounds the upper one is taken."""
    return where(self < min if max is None else (self < min) & (min < max), g)


def clamp_to_max(g: Tensor, y: Tensor, self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return where(self > max if min is None else (self > max) | (max < min), g)


# A rounded quotient is constant but for its jumps: its gradients are zeros.
def divided(g: Tensor, y: Tensor, self: Tensor, other: Tensor | Number, rounding_mode: str | None = None) -> Tensor:
    return g / other if rounding_mode is None else torch.zeros_like(g)


def divisor(g: Tensor, y: Tensor, self: Tensor | Number, other: Tensor, rounding_mode: str | None = None) -> Tensor:
    return -g * ((self / other) / other) if rounding_mode is None else torch.zeros_like(g)


def pow_base(g: Tensor, y: Tensor, self: Tensor, exponent: Tensor | Number) -> Tensor:
    """x⁰ is 1 for x = 0, too, where 0 · 0⁻¹ would be no number."""
    if not isinstance(exponent, Tensor):
        return g * (exponent * self.pow(exponent - 1)) if exponent else torch.zeros_like(g)
    return torch.where(exponent == 0, 0.0, g * (exponent * self.pow(exponent - 1)))


def pow_exponent(g: Tensor, y: Tensor, self: Tensor | Number, exponent: Tensor) -> Tensor:
    """0ˣ is 0 on the right of 0, where 0 · log 0 would be no number."""
    if isinstance(self, Tensor):
        return g * torch.where((self == 0) & (exponent >= 0), 0.0, y * self.log())
    if self == 0:
        return g * torch.where(exponent >= 0, 0.0, y * -math.inf)
    return g * (y * (math.log(self) if self > 0 else math.nan))


def greater(g: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The gradient of the greater of two; half of it where they are equal."""
    return torch.where(one == other, g / 2, g).masked_fill(one < other, 0)


def sliced(
    g: Tensor, y: Tensor, self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    bounds = (0 if start is None else start, LAST if end is None else end)
    return aten.slice_backward(g, self.shape, dim, *bounds, step)


def elu(g: Tensor, y: Tensor, self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    return aten.elu_backward(g, alpha, scale, input_scale, False, self)


DERIVATIVES: Mapping[str, Mapping[str, Rule]] = {
    "abs": {"self": lambda g, y, self: g * self.sgn()},
    "add": {
        "self": lambda g, y, self, other, alpha=1: g,
        "other": lambda g, y, self, other, alpha=1: scaled(g, alpha),
    },
    "clamp": {
        "self": lambda g, y, self, min=None, max=None: where(inside(self, min, max), g),
        "min": clamp_to_min,
        "max": clamp_to_max,
    },
    "clamp_max": {
        "self": lambda g, y, self, max: where(self <= max, g),
        "max": lambda g, y, self, max: where(self > max, g),
    },
    "clamp_min": {
        "self": lambda g, y, self, min: where(self >= min, g),
        "min": lambda g, y, self, min: where(self < min, g),
    },
    "div": {"self": divided, "other": divisor},
    "elu": {"self": elu},
    "erf": {"self": lambda g, y, self: 2 / math.sqrt(math.pi) * torch.exp(-self.pow(2)) * g},
    "exp": {"self": lambda g, y, self: g * y},
    "gelu": {"self": lambda g, y, self, approximate="none": aten.gelu_backward(g, self, approximate=approximate)},
    "hardswish": {"self": lambda g, y, self: aten.hardswish_backward(g, self)},
    "hardtanh": {"self": lambda g, y, self, min_val=-1, max_val=1: aten.hardtanh_backward(g, self, min_val, max_val)},
    "leaky_relu": {
        "self": lambda g, y, self, negative_slope=0.01: aten.leaky_relu_backward(g, self, negative_slope, False)
    },
    "log": {"self": lambda g, y, self: g / self},
    "log1p": {"self": lambda g, y, self: g / (self + 1)},
    "maximum": {
        "self": lambda g, y, self, other: greater(g, self, other),
        "other": lambda g, y, self, other: greater(g, other, self),
    },
    "minimum": {
        "self": lambda g, y, self, other: greater(g, other, self),
        "other": lambda g, y, self, other: greater(g, self, other),
    },
    "mish": {"self": lambda g, y, self: aten.mish_backward(g, self)},
    "mul": {"self": lambda g, y, self, other: g * other, "other": lambda g, y, self, other: g * self},
    "neg": {"self": lambda g, y, self: -g},
    "pow": {"self": pow_base, "exponent": pow_exponent},
    "reciprocal": {"self": lambda g, y, self: -g * (y * y)},
    "relu": {"self": lambda g, y, self: aten.threshold_backward(g, y, 0)},
    "rsqrt": {"self": lambda g, y, self: -0.5 * g * y.pow(3)},
    "rsub": {
        "self": lambda g, y, self, other, alpha=1: scaled(-g, alpha),
        "other": lambda g, y, self, other, alpha=1: g,
    },
    "sigmoid": {"self": lambda g, y, self: aten.sigmoid_backward(g, y)},
    "silu": {"self": lambda g, y, self: aten.silu_backward(g, self)},
    "slice": {"self": sliced},
    "softplus": {"self": lambda g, y, self, beta=1, threshold=20: aten.softplus_backward(g, self, beta, threshold)},
    "sqrt": {"self": lambda g, y, self: g / (2 * y)},
    "square": {"self": lambda g, y, self: g * (2 * self)},
    "sub": {
        "self": lambda g, y, self, other, alpha=1: g,
        "other": lambda g, y, self, other, alpha=1: scaled(-g, alpha),
    },
    "tanh": {"self": lambda g, y, self: aten.tanh_backward(g, y)},
}
"""Of each function, by the names that ATen's schemas give the arguments that may be tensors."""

OF_RESULT = frozenset(("exp", "reciprocal", "relu", "rsqrt", "sigmoid", "sqrt", "tanh"))
"""Functions whose derivatives read their result and not their operand."""
OF_NOTHING = frozenset(("add", "neg", "rsub", "slice", "sub"))
"""Functions whose derivatives read neither. Those of all others read their operands; ``pow``'s may read the result,
too, which it is no dearer to compute again."""
