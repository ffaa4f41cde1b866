"""Redistributions whose backward runs under the gradients of weights.

Where a value is made whole for column-parallel products alone (I -> R, or S -> R by a gather), its gradient is summed
over the axis. The products' backward gives that gradient first, and computes their weights' gradients while the sum
is on its way: Megatron-LM's asynchronous all-reduce of input gradients (Shoeybi et al. 2019; Korthikanti et al. 2022,
section 4.2.2).
"""

from __future__ import annotations

from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Block, Node, Ref
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy

PRODUCTS = ("aten.linear.default", "aten.matmul.default")
STEPS = ("to_replicate", "all_gather")
"""Steps into R whose adjoint sums over the axis."""


def read_by_products(block: Block) -> dict[str, tuple[Node, ...]]:
    """The values that only products with parameters read, as their first operand, and these products, of one kind."""
    matrices = {p.name for p in block.parameters if len(p.type.shape) == 2}
    found: dict[str, list[Node]] = {}
    others = set(block.outputs) | {v.name for v in (*block.parameters, *block.buffers, *block.externals)}
    for node in block.nodes:
        for place, name in enumerate(node.operands):
            if place == 0 and is_product(node, matrices):
                found.setdefault(name, []).append(node)
            else:
                others.add(name)
    alike = {name for name, nodes in found.items() if len({node.op for node in nodes}) == 1}
    return {name: tuple(nodes) for name, nodes in found.items() if name in alike - others}


def is_product(node: Node, matrices: set[str]) -> bool:
    """Whether it multiplies rows with a parameter, which nothing else of it reads."""
    refs = [arg.name if isinstance(arg, Ref) else "" for arg in node.args]
    return node.op in PRODUCTS and not node.kwargs and len(refs) == 2 and refs[1] in matrices


def is_plain(strategy: Strategy) -> bool:
    """Whether the operator runs as it is on each rank's operands."""
    return not any(way.body or way.scaled for _, way in strategy.axes)


def hidden_hops(block: Block, choice: BlockChoice, mesh: Mesh) -> dict[int, tuple[Node, ...]]:
    """Of the hops of a choice, by their numbers, those whose backward runs under weights' gradients, and the products
    that give these."""
    fed, found = read_by_products(block), {}
    strategies, types, met = dict(choice.strategies), block.types(), dict(choice.parameters)
    for number, hop in enumerate(choice.hops):
        steps = hop.steps or ()
        if hop.value not in fed or len(steps) != 1 or steps[0].op not in STEPS or not steps[0].backward:
            continue
        if any(other.value == hop.value and other.source == hop.target for other in choice.hops):
            continue  # it goes on from there: another sum follows
        readers = []
        for node in fed[hop.value]:
            strategy, weight = strategies[node.name], node.operands[1]
            if strategy.input(0, len(types[hop.value].shape), mesh) != hop.target:
                continue
            readers.append(node if is_plain(strategy) and strategy.input(1, 2, mesh) == met[weight] else None)
        if readers and None not in readers:
            found[number] = tuple(node for node in readers if node is not None)
    return found
