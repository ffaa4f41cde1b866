"""Operators that make tensors out of sizes. What holds one value everywhere splits along any dim."""

from autoplan.ir.graph import Argument, TensorType
from autoplan.rules.registry import Rule, letters, rule


@rule("aten.full.default", "aten.zeros.default", "aten.ones.default")
def full(shape: tuple[int, ...], *value: Argument, **said: Argument) -> Rule:
    return Rule(f" -> {letters(len(shape))}", shape_arg=0)


@rule("aten.new_full.default", "aten.new_zeros.default", "aten.new_ones.default")
def new_full(x: TensorType, shape: tuple[int, ...], *value: Argument, **said: Argument) -> Rule:
    """x gives the dtype alone: any part of it would do, but it is read whole."""
    own = letters(x, "x")
    whole = frozenset() if own == "[]" else frozenset(own.split())
    return Rule(f"{own} -> {letters(len(shape))}", whole=whole, shape_arg=1)


@rule("aten.full_like.default", "aten.zeros_like.default", "aten.ones_like.default")
def full_like(x: TensorType, *value: Argument, **said: Argument) -> Rule:
    return Rule(f"{letters(x)} -> {letters(x)}")


@rule("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(*bounds: float, **said: Argument) -> Rule:
    """Whole: its elements differ by place. A slice of it costs nothing."""
    return Rule(" -> n", whole="n")


@rule("aten.scalar_tensor.default")
def scalar_tensor(value: float, **said: Argument) -> Rule:
    return Rule(" -> []")


@rule("aten.tril_indices.default", "aten.triu_indices.default")
def triangle_indices(rows: int, columns: int, offset: int = 0, **said: Argument) -> Rule:
    """Rows and columns of a triangle's elements."""
    return Rule(" -> a n", whole=("a", "n"))
