"""What runs behind a stack of layers on what each of them gave, run where the layer runs.

A load-balancing loss adds up, layer by layer, sums over each router's logits, once the model is done. Cut as it is
traced, a layer would pass on its own logits and those of all before, and no two layers were alike. Beside their layers
the same sums need what the layer gives and the sums so far: as much for each layer, and layers fold.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autoplan.ir.graph import Node
from autoplan.trace.blocks.cut import HEAVY, Alive, is_repeat, unit_of
from autoplan.trace.blocks.flat import Tree


def beside_layers(
    nodes: Sequence[Node], tree: Tree, constants: Collection[str], parameters: frozenset[str], output: str
) -> tuple[Node, ...]:
    """The nodes, in another order where less is passed on between layers for it."""
    found = tuple(nodes)
    for at in tree.repeating:
        moved = of_list(found, at, tree, constants)
        if moved != found and passes_less(moved, found, at, tree, constants, parameters, output):
            found = moved
    return found


def of_list(nodes: tuple[Node, ...], at: str, tree: Tree, constants: Collection[str]) -> tuple[Node, ...]:
    """The nodes with those behind one list's repeats beside the repeat that they read."""
    ends = ends_of(nodes, at, tree)
    units = list(ends)
    if len(units) < 2:
        return nodes
    behind = [n for n in nodes[ends[units[-1]] + 1 :] if n.name not in constants and not unit_of(n.module, tree)]
    homes = dict(seeds(nodes, behind, units, tree))
    moved: list[list[Node]] = [[] for _ in units]
    for node in behind:
        known = [homes[name] for name in node.operands if name in homes]
        if known and node.op not in HEAVY and all(name in homes or name in constants for name in node.operands):
            homes[node.name] = max(known)
            moved[homes[node.name]].append(node)
    moved[-1] = like(moved[-1], moved[-2])
    after = {ends[unit]: [replace(n, module=unit) for n in moved[i]] for i, unit in enumerate(units)}
    gone = {node.name for own in moved for node in own}
    return tuple(new for i, n in enumerate(nodes) for new in ([] if n.name in gone else [n]) + after.get(i, []))


def ends_of(nodes: Sequence[Node], at: str, tree: Tree) -> dict[str, int]:
    """Of each repeat of a list the index of its last node, in the order in which they end."""
    ends: dict[str, int] = {}
    for index, node in enumerate(nodes):
        unit = unit_of(node.module, tree)
        if is_repeat(unit, tree) and unit.rpartition(".")[0] == at:
            ends.pop(unit, None)
            ends[unit] = index
    return ends


def seeds(nodes: Sequence[Node], behind: Sequence[Node], units: Sequence[str], tree: Tree) -> Mapping[str, int]:
    """Values that repeats before the last one give to what runs behind, by the repeat's number; and their like in the
    last one, which gives its result besides."""
    own: list[list[Node]] = [[] for _ in units]
    for node in nodes:
        unit = unit_of(node.module, tree)
        if unit in units:
            own[units.index(unit)].append(node)
    read = {name for node in behind for name in node.operands}
    found = {node.name: i for i, each in enumerate(own[:-1]) for node in each if node.name in read}
    places = [place for place, node in enumerate(own[-2]) if node.name in found]
    like_it = [own[-1][p] for p in places if p < len(own[-1]) and kind(own[-1][p]) == kind(own[-2][p])]
    return found | {node.name: len(units) - 1 for node in like_it if node.name in read}


def like(last: Sequence[Node], before: Sequence[Node]) -> list[Node]:
    """Of what could run beside the last repeat what runs beside the one before: the rest is computed once."""
    first = list(last[: len(before)])
    return first if list(map(kind, first)) == list(map(kind, before)) else []


def kind(node: Node) -> tuple:
    return node.op, node.type, len(node.operands)


def passes_less(
    moved: Sequence[Node], nodes: Sequence[Node], at: str, tree: Tree, constants: Collection[str],
    parameters: frozenset[str], output: str,
) -> bool:  # fmt: skip
    """Whether behind every repeat there is no more alive than before, less behind one, and all of it can be passed."""
    sizes = []
    for order in (moved, nodes):
        inside = [node for node in order if node.name not in constants]
        alive, bytes = Alive(inside, parameters, output), {node.name: node.type.bytes for node in inside}
        ends = ends_of(inside, at, tree).values()
        if order is moved and any(alive.cost(end + 1) is None for end in ends):
            return False
        sizes.append([sum(bytes[name] for name in alive.at(end + 1)) for end in ends])
    pairs = list(zip(*sizes, strict=True))
    return all(now <= then for now, then in pairs) and any(now < then for now, then in pairs)
