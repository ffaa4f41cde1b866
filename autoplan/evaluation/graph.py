"""A training step's graph -> the graph that the same model has in evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.ir.graph import Block, Model, Node, Ref
from autoplan.trace.blocks import renamed

ATTENTION = "aten.scaled_dot_product_attention.default"
DROPOUT_ARGUMENT = 4  # of attention
DROPOUT = "autoplan.dropout"
BATCH_NORM = "autoplan.batch_norm"
RUNNING_MEAN, TRACKED, IN_TRAINING = 3, 5, 6  # of batch norm's arguments


def evaluated(model: Model) -> Model:
    """The model without dropout, batch norm by its running statistics where it keeps any."""
    return replace(model, blocks=tuple(map(evaluated_block, model.blocks)))


def evaluated_block(block: Block) -> Block:
    names: dict[str, str] = {}
    nodes = tuple(kept_nodes(block, names))
    return replace(block, nodes=nodes, outputs=tuple(names.get(name, name) for name in block.outputs))


def kept_nodes(block: Block, names: dict[str, str]) -> Iterator[Node]:
    """The nodes but dropouts; ``names`` takes what is read in place of each dropout's result."""
    for node in block.nodes:
        node = evaluated_node(renamed(node, names))
        if node.op == DROPOUT:
            names[node.name] = node.operands[0]
        else:
            yield node


def evaluated_node(node: Node) -> Node:
    args = list(node.args)
    if node.op == ATTENTION and len(args) > DROPOUT_ARGUMENT:
        args[DROPOUT_ARGUMENT] = 0.0
    elif node.op == BATCH_NORM and isinstance(args[RUNNING_MEAN], Ref):
        args[TRACKED], args[IN_TRAINING] = None, False
    else:
        return node
    return replace(node, args=tuple(args))
