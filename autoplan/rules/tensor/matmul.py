"""Products: linear and matmul. Every factor splits, the contracted ones into partial sums."""

from __future__ import annotations

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, broadcast, broadcast_shape, letters, rule


@rule("aten.linear.default")
def linear(x: TensorType, w: TensorType) -> Rule:
    """x [.., k], w [n, k] -> [.., n]."""
    batch = rows(len(x.shape) - 1)
    return Rule(f"{batch}k, n k -> {batch}n", linear=((0,), (1,)), cost="matmul", saved=(0, 1))


@rule("aten.matmul.default")
def matmul(x: TensorType, w: TensorType) -> Rule:
    """x [.., m, k], w [.., k, n] -> [.., m, n]; the leading dims broadcast, a vector lacks m or n."""
    shape = broadcast_shape(x.shape[:-2], w.shape[:-2])
    m, n = "m " * (len(x.shape) > 1), "n " * (len(w.shape) > 1)
    left, right = (leading(t, shape) for t in (x, w))
    result = f"{rows(len(shape))}{m}{n}".strip() or "[]"
    return Rule(f"{left}{m}k, {right}k {n} -> {result}", linear=((0,), (1,)), cost="matmul", saved=(0, 1))


def rows(rank: int) -> str:
    """The terms of leading dims, followed by a space where there are any."""
    return f"{letters(rank)} " if rank else ""


def leading(x: TensorType, shape: tuple[int, ...]) -> str:
    """The terms of an operand's dims before its last two, broadcast to a shape."""
    batch = TensorType(x.shape[:-2], x.dtype)
    return f"{broadcast(batch, shape)} " if batch.shape else ""
