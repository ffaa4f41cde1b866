"""What is computed beside a mixture's tokens on their way: products that neither give them nor read what comes back.

A shared expert takes every token, and stands beside the experts that a router chooses (DeepSeek-AI 2024; Qwen2-MoE;
Llama 4). Its first products run while tokens go to their experts, its last while results come back, as under
Megatron-LM's ``moe_shared_expert_overlap``. Which operators these are is read off the graph.

    graph    router, experts, gate, up, activation, down, sum
    order    router, [tokens go] gate, up, activation, [experts; results go back] down, [results are there] sum
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoplan.errors import LayoutError
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Block, Node
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.randomness import is_random
from autoplan.option_values import SHARED
from autoplan.redistribution.hidden import hidden_hops, is_product
from autoplan.rules.nn.expert_capacity import travels


@dataclass(frozen=True)
class Beside:
    """Names of the operators that run while tokens go, and while results come back, in the order of the graph."""

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.first or self.last)


def beside_mixture(block: Block, choice: BlockChoice, mesh: Mesh, mixture: str) -> Beside:
    """What may run beside a mixture whose tokens travel; nothing where an operator among it exchanges or draws."""
    made = {node.name: node for node in block.nodes}
    before = closure({name: node.operands for name, node in made.items()}, [mixture])
    after = closure(readers_of(block), [mixture])
    apart = [node for node in block.nodes if node.name not in before | after]
    matrices = {p.name for p in block.parameters if len(p.type.shape) == 2}
    products = {node.name for node in apart if is_product(node, matrices)}
    products -= shared_lines(block, choice, mesh, products)
    inner = {node.name: [n for n in node.operands if n in made] for node in apart}
    needed = closure(inner, products) & inner.keys()
    strategies = dict(choice.strategies)
    others = [name for name in needed if name not in products]
    if any(is_random(made[n]) or is_product(made[n], matrices) for n in others):
        return Beside()
    if any(way.body and axis != MICROBATCH for name in needed for axis, way in strategies[name].axes):
        return Beside()
    fed = {name for name in products if (closure(inner, inner[name]) & products)}
    last = {name for name in fed if not any(name in closure(inner, inner[other]) for other in products - {name})}
    names = [node.name for node in apart if node.name in needed]
    return Beside(tuple(n for n in names if n not in last), tuple(n for n in names if n in last))


def readers_of(block: Block) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in block.nodes:
        for name in node.operands:
            found.setdefault(name, []).append(node.name)
    return found


def closure(following: Mapping[str, Iterable[str]], start: Iterable[str]) -> set[str]:
    """These, and all that follow."""
    found, left = set(start), list(start)
    while left:
        more = [name for name in following.get(left.pop(), ()) if name not in found]
        found.update(more)
        left += more
    return found


def shared_lines(block: Block, choice: BlockChoice, mesh: Mesh, products: set[str]) -> set[str]:
    """Of the products those that run in one call with others (``redistribution.hidden``)."""
    groups = ({node.name for node in nodes} for nodes in hidden_hops(block, choice, mesh).values())
    return {name for group in groups if group - products for name in group & products}


def overlapped(block: Block, choice: BlockChoice, mesh: Mesh) -> dict[str, Beside]:
    """The mixtures of a block whose tokens travel beside a shared expert, by name."""
    strategies = dict(choice.strategies)
    names = [name for name, how in choice.exchanges if how == SHARED and travels(strategies[name], mesh)]
    found = {name: beside_mixture(block, choice, mesh, name) for name in names}
    for name in names:
        if not found[name]:
            cause = f"{name} is said to run beside a shared expert, and there is none"
            raise LayoutError(f"{block.name}: {name}", cause, "plan again, or undo the edit")
    return found


def in_order(block: Block, beside: Mapping[str, Beside]) -> Block:
    """The block with what runs beside a mixture's tokens just before the mixture: the call that has the results."""
    for mixture, each in beside.items():
        block = replace(block, nodes=tuple(reordered(block, mixture, each)))
    return block


def reordered(block: Block, mixture: str, beside: Beside) -> list[Node]:
    moved = {*beside.first, *beside.last}
    readers, made = readers_of(block), {node.name: node for node in block.nodes}
    place = next(n for n, node in enumerate(block.nodes) if node.name == mixture)
    waits = closure(readers, moved)
    early = [node for node in block.nodes[:place] if node.name not in waits]
    late = [node for node in block.nodes if node.name not in {*moved, mixture, *(n.name for n in early)}]
    return [*early, *(made[name] for name in (*beside.first, *beside.last)), made[mixture], *late]
