"""Which operators of a program drop elements, or draw numbers, and whether each rank draws its own.

What is drawn follows from an element's place in the whole tensor, so that any plan draws what one device draws. An
operator that drops ``BY_RANK`` runs torch's own kernel instead, under a seed that follows from the rank's part
(``Training.randomness``).
"""

from dataclasses import replace

from autoplan.ir.graph import Block, Model, Node
from autoplan.ir.typed_program import Compute, LoweredBlock

ATTENTION = "aten.scaled_dot_product_attention.default"
DROPOUT = "autoplan.dropout"
DROPOUT_ARGUMENT = 4  # of attention
HASHED = (DROPOUT, "autoplan.uniform")
KEY = "dropout_key"  # by which stages and segments take their microbatch's key
BY_RANK = "by_rank"  # the keyword of an operator that drops so


def drops(operator: Compute | Node) -> bool:
    """Whether it drops elements."""
    if operator.op == ATTENTION and len(operator.args) > DROPOUT_ARGUMENT:
        return operator.args[DROPOUT_ARGUMENT] != 0.0
    return operator.op == DROPOUT


def is_random(operator: Compute | Node) -> bool:
    """Whether it drops elements, or draws numbers."""
    return drops(operator) or operator.op in HASHED


def drops_by_rank(operator: Compute | Node) -> bool:
    """Whether it drops what each rank draws for itself."""
    return (BY_RANK, True) in operator.kwargs


def scores_in_memory(operator: Compute | Node) -> bool:
    """Whether an attention writes its scores out: a fused kernel can't drop by an element's place."""
    return operator.op == ATTENTION and drops(operator) and not drops_by_rank(operator)


def random_operators(block: LoweredBlock) -> tuple[Compute, ...]:
    """The block's operators that drop or draw, in order."""
    return tuple(s for s in block.body if isinstance(s, Compute) and is_random(s))


def with_randomness(model: Model, randomness: str) -> Model:
    """The model whose operators drop by rank ("per-rank") or by an element's place ("global")."""
    return replace(model, blocks=tuple(block_with(block, randomness == "per-rank") for block in model.blocks))


def block_with(block: Block, by_rank: bool) -> Block:
    return replace(block, nodes=tuple(node_with(node, by_rank and drops(node)) for node in block.nodes))


def node_with(node: Node, by_rank: bool) -> Node:
    """The operator, marked or not."""
    if drops_by_rank(node) == by_rank:
        return node
    kwargs = tuple(pair for pair in node.kwargs if pair[0] != BY_RANK)
    return replace(node, kwargs=(*kwargs, (BY_RANK, True)) if by_rank else kwargs)
