"""What the backward reads: operands and results that the operators of a block keep, by their rules."""

from collections.abc import Mapping, Set

from autoplan.ir.graph import Block, Node
from autoplan.rules.notation import kept as kept_of
from autoplan.rules.registry import Rule

SIGNED = "aten.relu.default"
"""Its backward reads of its result only where it is positive."""
SIGN_BYTES = 1.0


def value_of(node: Node, place: int | str) -> str:
    """The name of a node's operand, or of its result ("out")."""
    return node.name if place == "out" else node.operands[int(place)]


def keeps_of(
    block: Block, rules: Mapping[str, Rule], carries: frozenset[str], inside: frozenset[str], dropped: Set[str]
) -> dict[str, tuple[int | str, ...]]:
    """What each node keeps for the backward: operand positions, and "out".

    Parameters, constants and what a compiled backward computes from weights alone (a cast) are at hand anyway:
    ``dropped``. What passes ``inside`` a fused kernel is computed again, for which the kernel's own operands are kept:
    by the operator whose result is needed and that reads them.
    """
    found: dict[str, tuple[int | str, ...]] = {}
    again: set[str] = set()
    for node in reversed(block.nodes):
        places = kept_of(rules[node.name], [name in carries for name in node.operands]) if node.name in carries else ()
        if node.name in again or ("out" in places and node.name in inside):
            places = tuple(dict.fromkeys((*places, *range(len(node.operands)))))
        again |= {value_of(node, place) for place in places} & inside
        found[node.name] = tuple(place for place in places if value_of(node, place) not in inside | dropped)
    return found


def signs_of(block: Block, keeps: Mapping[str, tuple[int | str, ...]]) -> frozenset[str]:
    """The results that a compiled block keeps for their signs alone, in a byte for each element."""
    alone = {node.name for node in block.nodes if node.op == SIGNED and "out" in keeps[node.name]}
    for node in block.nodes:
        alone -= {value_of(node, place) for place in keeps[node.name] if place != "out"}
    return frozenset(alone)
