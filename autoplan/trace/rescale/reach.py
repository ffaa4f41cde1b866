"""How far indices reach: whether a table (of positions, say) is as long as what is read from it.

Bounds of integer values are followed from where they are made of sizes alone (arange, full) through what moves and
shifts them. Of anything else, tokens above all, nothing is said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoplan.ir.graph import DType, Node, Ref, TensorType

Bounds = tuple[float, float]  # least and greatest value, both reached at most

MOVES = (
    "aten.reshape.default", "aten.transpose.int", "aten.permute.default", "aten.unsqueeze.default", "aten.squeeze.dim",
    "aten.expand.default", "aten.slice.Tensor", "aten.select.int", "aten.repeat.default", "aten.to.dtype",
    "aten.clone.default", "aten.detach.default", "aten.flip.default", "aten.roll.default",
)  # fmt: skip
FILLED = {"aten.zeros.default": 0.0, "aten.ones.default": 1.0}


@dataclass(frozen=True)
class Lookup:
    """Rows of a table by an index: the table's name, the dim that is read, the index' greatest value."""

    table: str
    dim: int
    greatest: float


def bounds_of(node: Node, known: Mapping[str, Bounds], types: Mapping[str, TensorType]) -> Bounds | None:
    """Bounds of a node's values, None where nothing is known."""
    args = node.args
    if node.op.startswith("aten.arange."):
        return arange_bounds(args)
    if node.op in FILLED:
        return FILLED[node.op], FILLED[node.op]
    if node.op == "aten.full.default" and isinstance(args[1], int | float):
        return float(args[1]), float(args[1])
    given = [value(argument, known, types) for argument in args[:2]]
    first = given[0] if given else None
    if first is None:
        return None
    if node.op in MOVES:
        return first if node.op != "aten.to.dtype" or args[1] != DType("bool") else (0.0, 1.0)
    if node.op == "aten.cumsum.default":
        return summed(first, node)
    second = given[1] if len(given) > 1 else None
    if second is None or node.kwargs:
        return None
    return combined(node.op, first, second)


def value(argument: object, known: Mapping[str, Bounds], types: Mapping[str, TensorType]) -> Bounds | None:
    if isinstance(argument, Ref):
        kind = types[argument.name]
        return known.get(argument.name, (0.0, 1.0) if kind.dtype == "bool" else None)
    if isinstance(argument, int | float):
        return float(argument), float(argument)
    return None


def arange_bounds(args: tuple[object, ...]) -> Bounds | None:
    numbers = [float(a) for a in args if isinstance(a, int | float)]
    if len(numbers) == 1:
        return 0.0, numbers[0] - 1
    if len(numbers) == 2 and numbers[1] > numbers[0]:
        return numbers[0], numbers[1] - 1
    return None


def summed(each: Bounds, node: Node) -> Bounds:
    dim = node.args[1]
    assert isinstance(dim, int)
    many = node.type.shape[dim]
    return min(each[0], each[0] * many), max(each[1], each[1] * many)


def combined(op: str, first: Bounds, second: Bounds) -> Bounds | None:
    if op == "aten.add.Tensor":
        return first[0] + second[0], first[1] + second[1]
    if op == "aten.sub.Tensor":
        return first[0] - second[1], first[1] - second[0]
    if op == "aten.mul.Tensor":
        products = [a * b for a in first for b in second]
        return min(products), max(products)
    return None


def lookups(node: Node, known: Mapping[str, Bounds]) -> Iterator[Lookup]:
    """The reads by an index of which the bounds are known."""
    for table, dim, index in indexed(node):
        if isinstance(table, Ref) and isinstance(index, Ref) and index.name in known:
            yield Lookup(table.name, dim, known[index.name][1])


def indexed(node: Node) -> Iterator[tuple[object, int, object]]:
    """(table, dim, index) of a node that reads by indices."""
    args = node.args
    if node.op == "aten.embedding.default":
        yield args[0], 0, args[1]
    elif node.op in ("aten.index_select.default", "aten.gather.default"):
        assert isinstance(args[1], int)
        yield args[0], args[1], args[2]
    elif node.op == "aten.index.Tensor" and isinstance(args[1], tuple):
        yield from ((args[0], dim, index) for dim, index in enumerate(args[1]))
