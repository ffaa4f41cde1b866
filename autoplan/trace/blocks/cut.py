"""Where a program is cut into a chain: between repeated modules, and where one value alone is alive beside skips.

A *piece* is a run of consecutive nodes. A cut has a position: before the node of that index. The values alive at a
cut become what one segment gives and the next takes, so each of them has to be of floating numbers that follow from
parameters: what comes back for it is a gradient, which nobody reads where it carries none (how often experts were
chosen). A *skip* is a value that lives across many heavy operators: a U-Net's way down on its way up, an encoder's
result in a decoder. It passes every cut on its way, through segments that don't read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from autoplan.ir.graph import READ_BUFFER, Node, buffers_updated
from autoplan.trace.blocks.flat import Flat, Tree

HEAVY = frozenset({"aten.linear.default", "aten.matmul.default", "aten.convolution.default"})
CONTENT = HEAVY | {"aten.embedding.default"}  # a piece without any of these is no stage of its own
SKIP = 8
"""Heavy operators between the making of a value and its last use that make a skip of it. A layer's residual connection
spans fewer, of attention written out (three projections, two products, one more projection) too."""


@dataclass(frozen=True)
class Piece:
    """Consecutive nodes with what enters and leaves; ``path`` is the module they all belong to, or ""."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    path: str


@dataclass(frozen=True)
class Stretch:
    """Consecutive nodes run by one child of a list, or by none of them (unit "")."""

    unit: str
    start: int
    stop: int
    first_heavy: int | None
    last_heavy: int | None


class Alive:
    """Which values cross each position. Values are ordered as they are made, which both sides of a cut agree on."""

    def __init__(self, nodes: Sequence[Node], parameters: frozenset[str], output: str) -> None:
        self.nodes = nodes
        made = {node.name: index for index, node in enumerate(nodes)}
        self.last = dict(made)
        for index, node in enumerate(nodes):
            for name in node.operands:
                if name in self.last:
                    self.last[name] = max(self.last[name], index)
        self.last[output] = len(nodes)
        read = {node.operands[0]: index for index, node in enumerate(nodes) if node.op == READ_BUFFER}
        reached = set(parameters)
        for node in nodes:
            reached |= set() if reached.isdisjoint(node.operands) else {node.name}
        self.passable = {node.name for node in nodes if node.type.floating and node.name in reached}
        heavy = list(accumulate((node.op in HEAVY for node in nodes), initial=0))
        self.held = [False] * (len(nodes) + 1)
        for index, node in enumerate(nodes):
            for name in buffers_updated(node):
                self.held[read.get(name, index) + 1 : index + 1] = [True] * (index - read.get(name, index))
        self.skips = {
            name for name, index in made.items() if heavy[min(self.last[name], len(nodes))] - heavy[index + 1] >= SKIP
        }

    def at(self, position: int) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes[:position] if self.last[node.name] >= position)

    def cost(self, position: int) -> int | None:
        """How many values a cut would pass on; None where one of them can't be passed on, or the cut would lie between
        a buffer's read and its update: two stages would each have a buffer, and one of them would change."""
        values = self.at(position)
        return len(values) if self.passable.issuperset(values) and not self.held[position] else None

    def alone(self, position: int) -> bool:
        """Whether a cut is possible that passes on one value at most beside skips."""
        return self.cost(position) is not None and sum(value not in self.skips for value in self.at(position)) <= 1


def cut(flat: Flat, constants: frozenset[str]) -> tuple[Piece, ...]:
    """The chain's pieces, in order."""
    nodes = tuple(node for node in flat.nodes if node.name not in constants)
    parameters = frozenset(p.name for p in flat.parameters)
    alive = Alive(nodes, parameters, flat.output)
    edges = [0, *positions(nodes, flat.tree, alive), len(nodes)]
    pieces = []
    for start, stop in pairwise(edges):
        part = nodes[start:stop]
        pieces.append(Piece(part, alive.at(start), alive.at(stop), path_of(part, parameters, flat.tree)))
    return tuple(pieces)


def positions(nodes: Sequence[Node], tree: Tree, alive: Alive) -> list[int]:
    """Where to cut, in increasing order."""
    cuts: list[int] = []
    before: Stretch | None = None
    for stretch in stretches(nodes, tree):
        if stretch.first_heavy is None:
            continue
        start = cuts[-1] if cuts else 0
        if before is not None and stands_alone(nodes, before, stretch, tree):
            cuts += cheapest(range(before.stop, stretch.start), alive, True)
            start = cuts[-1] if cuts else 0
        if has_content(nodes[start : stretch.start]):
            among_repeats = is_repeat(stretch.unit, tree) or (before is not None and is_repeat(before.unit, tree))
            cuts += cheapest(candidates(before, stretch, tree), alive, among_repeats)
        if not stretch.unit:
            cuts += glue_cuts(nodes, stretch, cuts[-1] if cuts else 0, alive)
        before = stretch
    return cuts


def stands_alone(nodes: Sequence[Node], before: Stretch, stretch: Stretch, tree: Tree) -> bool:
    """Whether what runs between two repeats is a piece of its own, since it would make either unlike its equals: a
    norm after an encoder with the embedding of a decoder."""
    apart = is_repeat(before.unit, tree) and is_repeat(stretch.unit, tree)
    return apart and has_content(nodes[before.stop : stretch.start])


def candidates(before: Stretch | None, stretch: Stretch, tree: Tree) -> Sequence[int]:
    """Where a cut in front of a stretch may lie, what is preferred first: what is light on either side may go to either
    piece, unless it would make a repeat unlike its equals."""
    if not stretch.unit:
        assert stretch.first_heavy is not None
        return range(stretch.start, stretch.first_heavy + 1)
    if before is None or before.last_heavy is None or is_repeat(stretch.unit, tree):
        return (stretch.start,)
    if is_repeat(before.unit, tree):
        return range(before.stop, stretch.start + 1)
    return range(stretch.start, before.last_heavy, -1)


def stretches(nodes: Sequence[Node], tree: Tree) -> list[Stretch]:
    found = []
    for unit, group in groupby(range(len(nodes)), key=lambda index: unit_of(nodes[index].module, tree)):
        indices = list(group)
        heavy = [index for index in indices if nodes[index].op in HEAVY]
        ends = (heavy[0], heavy[-1]) if heavy else (None, None)
        found.append(Stretch(unit, indices[0], indices[-1] + 1, *ends))
    return found


def unit_of(path: str, tree: Tree) -> str:
    """The child of a list that a module lies in: of the outermost list whose children repeat, else the outermost;
    a list that is itself such a child gives its own children."""
    around = [at for at in tree.lists if not at or path.startswith(f"{at}.")]
    around = [at for at in around if child_of(at, path)]
    if not around:
        return ""
    chosen = next((at for at in around if at in tree.repeating), around[0])
    unit = child_of(chosen, path)
    while unit in tree.lists and child_of(unit, path):
        unit = child_of(unit, path)
    return unit


def child_of(at: str, path: str) -> str:
    """The path of the list's child that a module lies in, or ""."""
    rest = path[len(at) + 1 :] if at else path
    return ".".join(part for part in (at, rest.split(".")[0]) if part) if rest else ""


def is_repeat(unit: str, tree: Tree) -> bool:
    return bool(unit) and unit.rpartition(".")[0] in tree.repeating


def has_content(nodes: Sequence[Node]) -> bool:
    return any(node.op in CONTENT for node in nodes)


def cheapest(candidates: Sequence[int], alive: Alive, several: bool) -> list[int]:
    """The first of the positions with the fewest values; none where no cut is possible, or none of a single value
    beside skips and ``several`` are not wanted."""
    possible = [p for p in candidates if alive.cost(p) is not None and (several or alive.alone(p))]
    return [min(possible, key=lambda position: len(alive.at(position)))] if possible else []


def glue_cuts(nodes: Sequence[Node], stretch: Stretch, start: int, alive: Alive) -> list[int]:
    """Cuts inside what no list holds: in front of a heavy operator, at a position with one value alive beside skips,
    of these the last with the fewest values."""
    cuts: list[int] = []
    heavy_before = None
    for index in range(max(start, stretch.start), stretch.stop):
        if nodes[index].op not in HEAVY:
            continue
        begin = max(cuts[-1] if cuts else start, heavy_before + 1 if heavy_before is not None else start)
        first = cuts[-1] if cuts else start
        possible = [p for p in range(begin + 1, index + 1) if has_content(nodes[first:p]) and alive.alone(p)]
        if possible:
            cuts.append(min(possible, key=lambda p: (len(alive.at(p)), -p)))
        heavy_before = index
    return cuts


def path_of(nodes: Sequence[Node], parameters: frozenset[str], tree: Tree) -> str:
    """The one unit that holds all the piece's parameters, or ""."""
    units = {unit for node in nodes if node.op in CONTENT and (unit := unit_of(node.module, tree))}
    read = {name for node in nodes for name in node.operands if name in parameters}
    if len(units) != 1:
        return ""
    unit = units.pop()
    return unit if read and all(name.startswith(f"{unit}.") for name in read) else ""
