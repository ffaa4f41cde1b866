"""Which operators of a program drop elements, or draw numbers."""

from autoplan.ir.graph import Node
from autoplan.ir.typed_program import Compute, LoweredBlock

ATTENTION = "aten.scaled_dot_product_attention.default"
DROPOUT_ARGUMENT = 4  # of attention
HASHED = ("autoplan.dropout", "autoplan.uniform")


def is_random(operator: Compute | Node) -> bool:
    """Whether it drops elements, or draws numbers."""
    if operator.op == ATTENTION and len(operator.args) > DROPOUT_ARGUMENT:
        return operator.args[DROPOUT_ARGUMENT] != 0.0
    return operator.op in HASHED


def random_operators(block: LoweredBlock) -> tuple[Compute, ...]:
    """The block's operators that do so, in order."""
    return tuple(s for s in block.body if isinstance(s, Compute) and is_random(s))
