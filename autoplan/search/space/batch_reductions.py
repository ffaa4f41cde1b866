"""Partial sums over the batch, made whole where the loss needs them whole.

A loss is a sum over the rows of the batch, but for parts of it that aren't: a load-balancing loss is a product of two
such sums. Data parallelism would stop at that product. So where the walk of ``batch_axes`` stops at an operator that
meets partial sums, they are made whole by an operator of their own, and where a whole value is to be added to a partial
sum it is made a summand. Microbatches can exchange nothing, so on their axis such a model still stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoplan.ir.graph import Block, Model, Node, Ref
from autoplan.ir.layout import P
from autoplan.search.space.batch_axes import CONSTANTS, BatchEnds, first_stop
from autoplan.trace.blocks import renamed

MOST = 64  # operators added before the attempt is given up


def with_batch_reductions(model: Model) -> Model:
    """The model with such operators, or as it is where they don't make its batch splittable."""
    changed = model
    for _ in range(MOST):
        stop = first_stop(changed)
        if stop is None:
            return changed
        added = {} if stop.scope == CONSTANTS else additions(changed.blocks[stop.scope], stop)
        if not added:
            return model
        blocks = list(changed.blocks)
        blocks[stop.scope] = inserted(blocks[stop.scope], stop.node, added)
        changed = replace(changed, blocks=tuple(blocks))
    return model


def additions(block: Block, stop: BatchEnds) -> Mapping[str, str]:
    """The operator that each of some operands of the node is passed through; none where that is no help."""
    carries = block.carries_gradient()
    partial = [name for name, state in zip(stop.node.operands, stop.met, strict=True) if state == P]
    if not partial:
        return {}
    if stop.node.op == "aten.add.Tensor" and len(partial) < len(stop.node.operands):
        rest = [name for name in stop.node.operands if name not in partial]
        return dict.fromkeys(rest, "autoplan.batch_part") if all(name in carries for name in rest) else {}
    return {name: "autoplan.batch_total" if name in carries else "autoplan.batch_count" for name in partial}


def inserted(block: Block, reader: Node, added: Mapping[str, str]) -> Block:
    """The block with these operators in front of a node, which reads their results."""
    types = block.types()
    taken = set(types)
    names: dict[str, str] = {}
    new: list[Node] = []
    for name, op in added.items():
        names[name] = f"{name}_{op.removeprefix('autoplan.batch_')}"
        while names[name] in taken:
            names[name] += "_"
        taken.add(names[name])
        new.append(Node(names[name], op, (Ref(name),), (), types[name], reader.module))
    nodes = [n for node in block.nodes for n in ((*new, renamed(node, names)) if node == reader else (node,))]
    return replace(block, nodes=tuple(nodes))
