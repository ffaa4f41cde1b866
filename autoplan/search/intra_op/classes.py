"""What is one decision in several places: boundaries that follow one another, parameters that several blocks read.

And what is asked once for several: operators that are alike, as those of a stack's first, repeated and last layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from autoplan.cost import Operator
from autoplan.ir.graph import Argument, Model, Node, Ref

GroupKey = tuple[str, int, str]  # kind ("node", "boundary", "stored", "given"), block (-1: of the model), name


def boundary_classes(model: Model) -> dict[tuple[int, str, int], int]:
    """(block, "in" or "out", position) -> number of its boundary: what leaves a segment enters the next."""
    union = Union()
    for index, block in enumerate(model.blocks):
        for side, count in (("in", len(block.inputs)), ("out", len(block.outputs))):
            for position in range(count):
                union.find((index, side, position))
    for before, after in zip(model.segments, model.segments[1:], strict=False):
        for position in range(len(model.blocks[after.block].inputs)):
            union.join((before.block, "out", position), (after.block, "in", position))
    return union.numbers()


def stored_classes(model: Model) -> tuple[dict[GroupKey, str], dict[str, int]]:
    """("stored", block, local name) -> a name for how it is stored, one for all that share a parameter; and how many
    parameters of the model each of these names stands for."""
    names = [name for segment in model.segments for name in segment.parameters]
    if len(set(names)) == len(names):
        return apart(model)
    union = Union()
    for segment in model.segments:
        block = model.blocks[segment.block]
        for local, name in zip(block.parameters, segment.parameters, strict=True):
            union.join(("stored", segment.block, local.name), name)
    numbers = union.numbers()
    counts = Counter(str(number) for item, number in numbers.items() if isinstance(item, str))
    return {item: str(number) for item, number in numbers.items() if isinstance(item, tuple)}, dict(counts)


def readers(model: Model, block: int) -> int:
    """Segments that read one parameter of a block's, at most."""
    count = Counter(name for segment in model.segments for name in set(segment.parameters))
    mine = (name for segment in model.segments if segment.block == block for name in segment.parameters)
    return max((count[name] for name in mine), default=1)


def apart(model: Model) -> tuple[dict[GroupKey, str], dict[str, int]]:
    """The same where each parameter is read by one segment alone."""
    uses = Counter(segment.block for segment in model.segments)
    found: dict[GroupKey, str] = {}
    counts = {}
    for index, count in uses.items():
        for parameter in model.blocks[index].parameters:
            found["stored", index, parameter.name] = number = str(len(found))
            counts[number] = count
    return found, counts


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
    flags = (o.carries, o.weighs, o.joins, o.result_carries, o.reads, o.writes, o.keeps)
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
