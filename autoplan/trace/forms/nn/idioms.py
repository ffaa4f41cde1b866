"""Operators that models spell out: recognised as one, which is read, split, and kept for the backward as one."""

import math

from autoplan.ir.graph import Argument, Node, Ref
from autoplan.trace.builder import Builder

CUBIC = 0.044715  # Hendrycks and Gimpel 2016, the tanh form of GELU


def operand(b: Builder, x: Argument, op: str, *rest: Argument) -> Ref | None:
    """The first operand of the node that made a value, if it is this operator with these further arguments."""
    node = b.maker(x, op)
    if node is None or not isinstance(node.args[0], Ref) or node.args[1 : 1 + len(rest)] != rest:
        return None
    return node.args[0]


def rms_norm(b: Builder, x: Ref, y: Ref) -> Ref | None:
    """``x * rsqrt(mean(x²) + eps)`` in either order, and its product with a weight."""
    return normalised(b, x, y) or normalised(b, y, x) or weighted(b, x, y) or weighted(b, y, x)


def normalised(b: Builder, x: Ref, scale: Ref) -> Ref | None:
    shifted = b.maker(operand(b, scale, "aten.rsqrt.default"), "aten.add.Tensor")
    if shifted is None or not isinstance(shifted.args[1], float):
        return None
    last = len(b.shape(x)) - 1
    square = operand(b, shifted.args[0], "aten.mean.dim", (last,), True)
    if operand(b, square, "aten.pow.Tensor_Scalar", 2) != x:
        return None
    return b.emit("aten.rms_norm.default", x, (b.shape(x)[last],), None, shifted.args[1])


def weighted(b: Builder, weight: Ref, x: Ref) -> Ref | None:
    """A weight of the normalised dim goes into the norm."""
    norm = b.maker(x, "aten.rms_norm.default")
    if norm is None or norm.args[2] is not None or b.shape(weight) != norm.args[1]:
        return None
    source = norm.args[0]
    assert isinstance(source, Ref)
    return b.emit("aten.rms_norm.default", source, norm.args[1], weight, norm.args[3])


def gelu_tanh(b: Builder, half: Ref, one_plus: Ref) -> Ref | None:
    """``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))``, as GPT-2 writes it."""
    x = operand(b, half, "aten.mul.Tensor", 0.5)
    scaled = b.maker(operand(b, operand(b, one_plus, "aten.add.Tensor", 1.0), "aten.tanh.default"), "aten.mul.Tensor")
    if x is None or scaled is None or not close(scaled.args[1], math.sqrt(2 / math.pi)):
        return None
    inner = b.maker(scaled.args[0], "aten.add.Tensor")
    if inner is None or inner.args[0] != x or not cubed(b, inner, x):
        return None
    return b.emit("aten.gelu.default", x, kwargs=(("approximate", "tanh"),))


def cubed(b: Builder, inner: Node, x: Ref) -> bool:
    return operand(b, operand(b, inner.args[1], "aten.mul.Tensor", CUBIC), "aten.pow.Tensor_Scalar", 3) == x


def close(number: Argument, wanted: float) -> bool:
    return isinstance(number, float) and math.isclose(number, wanted, rel_tol=1e-12)
