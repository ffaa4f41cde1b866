"""What runs between an expert's products, as text: ``mul(silu(gate), up)``.

The text is part of a plan, so it is read as an expression of named functions and nothing else; nothing is executed.
"""

import ast
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

FUNCTIONS = frozenset(
    "abs add clamp clamp_max clamp_min div elu erf exp gelu hardswish hardtanh leaky_relu log log1p maximum minimum "
    "mish mul neg pow reciprocal relu rsqrt rsub sigmoid silu slice softplus sqrt square sub tanh".split()
)
"""Operators of ``torch.ops.aten`` that an activation may be made of: elementwise ones, and ``slice``."""


def activation_function(text: str, names: tuple[str, ...]) -> Callable[..., Tensor]:
    """The function of ``names`` that a text stands for; ValueError where it is none of calls of ``FUNCTIONS``."""
    body = ast.parse(text, mode="eval").body

    def function(*tensors: Tensor) -> Tensor:
        result = value_of(body, dict(zip(names, tensors, strict=True)))
        assert isinstance(result, Tensor)
        return result

    return function


def value_of(node: ast.expr, values: Mapping[str, Tensor]) -> object:
    """The value of an expression."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in FUNCTIONS:
            given = {str(k.arg): value_of(k.value, values) for k in keywords}
            return getattr(torch.ops.aten, name)(*(value_of(arg, values) for arg in args), **given)
    raise ValueError(f"{ast.unparse(node)!r} is no call of a known function")
