"""einsum, whose equation is a rule's notation already."""

from __future__ import annotations

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, rule


@rule("aten.einsum.default")
def einsum(equation: str, tensors: tuple[TensorType, ...]) -> Rule:
    """The equation has no dots and names its result. Where one operand has size one in a letter that is larger in
    another, it is broadcast there."""
    left, result = equation.replace(" ", "").split("->")
    names = left.split(",")
    sizes: dict[str, int] = {}
    for letters, x in zip(names, tensors, strict=True):
        for letter, size in zip(letters, x.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    terms = [
        " ".join("1" if size != sizes[letter] else letter for letter, size in zip(letters, x.shape, strict=True))
        or "[]"
        for letters, x in zip(names, tensors, strict=True)
    ]
    return Rule(
        f"{', '.join(terms)} -> {' '.join(result) or '[]'}",
        linear=tuple((i,) for i in range(len(tensors))),
        cost="matmul" if len(tensors) == 2 else "memory",
        saved=tuple(range(len(tensors))) if len(tensors) > 1 else (),
    )
