"""Products: linear, matmul, and einsum, whose equation is a rule's notation already.

Every factor splits, the contracted ones into partial sums.
"""

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


@rule("aten.einsum.default")
def einsum(equation: str, tensors: tuple[TensorType, ...]) -> Rule:
    """The equation has no dots and names its result. Where one operand has size one in a letter that is larger in
    another, it is broadcast there."""
    left, result = equation.replace(" ", "").split("->")
    names = left.split(",")
    sizes: dict[str, int] = {}
    for term, x in zip(names, tensors, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    terms = [
        " ".join("1" if size != sizes[letter] else letter for letter, size in zip(term, x.shape, strict=True))
        or "[]"
        for term, x in zip(names, tensors, strict=True)
    ]
    return Rule(
        f"{', '.join(terms)} -> {' '.join(result) or '[]'}",
        linear=tuple((i,) for i in range(len(tensors))),
        cost="matmul" if len(tensors) == 2 else "memory",
        saved=tuple(range(len(tensors))) if len(tensors) > 1 else (),
    )
