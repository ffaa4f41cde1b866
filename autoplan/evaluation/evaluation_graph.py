"""A training step's graph -> the graph that the same model has in evaluation, or without dropout alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from autoplan.ir.graph import BATCH_NORM, UPDATE_BUFFER, Block, Model, Node, Ref
from autoplan.ir.randomness import ATTENTION, DROPOUT, DROPOUT_ARGUMENT, node_with
from autoplan.trace.blocks import renamed

RUNNING_MEAN, TRACKED, IN_TRAINING = 3, 5, 6  # of batch norm's arguments

Change = Callable[[Node], Node]


def evaluated(model: Model) -> Model:
    """The model without dropout, batch norm by its running statistics where it keeps any; no buffer changes."""
    return replace(model, blocks=tuple(unchanging(changed(block, evaluated_node)) for block in model.blocks))


def without_dropout(model: Model) -> Model:
    """The model as it trains where nothing is dropped."""
    return replace(model, blocks=tuple(changed(block, undropped) for block in model.blocks))


def unchanging(block: Block) -> Block:
    """The block without the updates of buffers, and without what serves these alone."""
    if not any(node.op == UPDATE_BUFFER for node in block.nodes):
        return block
    wanted, kept = set(block.outputs), []
    for node in reversed(block.nodes):
        if node.name in wanted:
            wanted.update(node.operands)
            kept.append(node)
    return replace(block, nodes=tuple(reversed(kept)))


def changed(block: Block, change: Change) -> Block:
    names: dict[str, str] = {}
    nodes = tuple(kept_nodes(block, change, names))
    return replace(block, nodes=nodes, outputs=tuple(names.get(name, name) for name in block.outputs))


def kept_nodes(block: Block, change: Change, names: dict[str, str]) -> Iterator[Node]:
    """The nodes but dropouts; ``names`` takes what is read in place of each dropout's result."""
    for node in block.nodes:
        node = change(renamed(node, names))
        if node.op == DROPOUT:
            names[node.name] = node.operands[0]
        else:
            yield node


def undropped(node: Node) -> Node:
    if node.op != ATTENTION or len(node.args) <= DROPOUT_ARGUMENT:
        return node
    node = node_with(node, by_rank=False)
    return replace(node, args=(*node.args[:DROPOUT_ARGUMENT], 0.0, *node.args[DROPOUT_ARGUMENT + 1 :]))


def evaluated_node(node: Node) -> Node:
    if node.op != BATCH_NORM or not isinstance(node.args[RUNNING_MEAN], Ref):
        return undropped(node)
    args = list(node.args)
    args[TRACKED], args[IN_TRAINING] = None, False
    return replace(node, args=tuple(args))
