"""What is one decision in several places: boundaries that follow one another, parameters that several blocks read.

And what is asked once for several: operators that are alike, as those of a stack's first, repeated and last layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Operator
from autoplan.ir.graph import Argument, Model, Node, Ref

GroupKey = tuple[str, int, str]  # kind ("node", "boundary", "stored", "given"), block (-1: of the model), name


@dataclass(frozen=True)
class Classes:
    """The decisions that several places of a model share.

    boundaries  (block, "in" or "out", position) -> number of its boundary: what leaves a segment enters the next
    stored      ("stored", block, local name) -> a name for how it is stored, one for all that share a parameter
    sharers     of each of these names, the parameters of the model that it stands for
    """

    boundaries: Mapping[tuple[int, str, int], int]
    stored: Mapping[GroupKey, str]
    sharers: Mapping[str, int]


def classes_of(model: Model) -> Classes:
    boundaries, stored = Union(), Union()
    for index, block in enumerate(model.blocks):
        for side, count in (("in", len(block.inputs)), ("out", len(block.outputs))):
            for position in range(count):
                boundaries.find((index, side, position))
    for before, after in zip(model.segments, model.segments[1:], strict=False):
        for position in range(len(model.blocks[after.block].inputs)):
            boundaries.join((before.block, "out", position), (after.block, "in", position))
    for segment in model.segments:
        for local, name in zip(model.blocks[segment.block].parameters, segment.parameters, strict=True):
            stored.join(("stored", segment.block, local.name), name)
    names = stored.numbers()
    sharers = Counter(str(number) for item, number in names.items() if isinstance(item, str))
    ways = {item: str(number) for item, number in names.items() if isinstance(item, tuple)}
    return Classes(boundaries.numbers(), ways, sharers)


def readers(model: Model, block: int) -> int:
    """Segments that read one parameter of a block's, at most."""
    count = Counter(name for segment in model.segments for name in set(segment.parameters))
    mine = (name for segment in model.segments if segment.block == block for name in segment.parameters)
    return max((count[name] for name in mine), default=1)


OperatorKey = tuple[int, str]  # block, name


def alike_operators(operators: Sequence[Mapping[str, Operator]]) -> dict[OperatorKey, OperatorKey]:
    """Of every operator of the blocks, the first that differs from it in names at most: on one mesh both may be split
    alike, and cost the same split alike."""
    first: dict[tuple, OperatorKey] = {}
    return {
        (index, name): first.setdefault(likeness(operator), (index, name))
        for index, own in enumerate(operators)
        for name, operator in own.items()
    }


def likeness(operator: Operator) -> tuple:
    """All of an operator but names."""
    o = operator
    flags = (o.carries, o.weighs, o.joins, o.result_carries, o.reads, o.writes, o.keeps, o.beside)
    return (o.node.op, repr(nameless(o.node)), o.node.type, o.operands, flags, repr(o.rule))


def nameless(node: Node) -> Argument:
    """The arguments with numbers for the values, as they come first."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(node.operands))}

    def without(argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return f"%{numbers[argument.name]}"
        return tuple(without(item) for item in argument) if isinstance(argument, tuple) else argument

    return without((node.args, node.kwargs))


class Union:
    """Union–find over anything hashable, in the order in which items came."""

    def __init__(self) -> None:
        self.parent: dict = {}

    def find(self, item: object) -> object:
        self.parent.setdefault(item, item)
        while self.parent[item] != item:
            item = self.parent[item]
        return item

    def join(self, a: object, b: object) -> None:
        root_a, root_b = self.find(a), self.find(b)
        if root_a != root_b:
            self.parent[root_b] = root_a

    def numbers(self) -> dict:
        roots: dict[object, int] = {}
        return {item: roots.setdefault(self.find(item), len(roots)) for item in self.parent}
