"""Alike computations on all parts of a tensor, put together at the end, as one computation over the whole.

``stack([f(x[:, t]) for t in range(length)], 1)`` is f over x with the places of its dim as one more dim in front: each
operator takes that dim along.
"""

from collections.abc import Callable, Mapping, Sequence

from autoplan.ir.graph import Argument, Node, Ref
from autoplan.rules.tensor.elementwise import TABLE as ELEMENTWISE
from autoplan.trace.builder import Builder

Names = tuple[str, ...]  # one value for each place


class Unlike(Exception):
    """The parts aren't computed alike, or by an operator that takes no further dim along."""


class Vectorizer:
    """Makes one computation of the parts of a concatenation. New nodes are made by a builder that knows all types."""

    def __init__(self, builder: Builder, by_name: Mapping[str, Node]) -> None:
        self.by_name = by_name
        self.builder = Builder()
        self.builder.types = builder.types
        self.known: dict[Names, Ref] = {}

    def of(self, node: Node) -> tuple[list[Node], str] | None:
        """The nodes that make a concatenation's result, and its name; None where it stays."""
        parts, dim = node.operands, node.args[1] if len(node.args) > 1 else 0
        assert isinstance(dim, int)
        self.builder.module = node.module
        try:
            whole = self.lifted(parts)
        except Unlike:
            return None
        if self.builder.shape(whole)[0] != len(parts):  # of one value several times, cat([x, x]), nothing is saved
            return None
        rank = len(node.type.shape)
        turned = self.builder.permute(whole, (*range(1, dim + 1), 0, *range(dim + 1, rank + 1)))
        result = self.builder.reshape(turned, node.type.shape)
        return list(self.builder.nodes.values()), result.name

    def lifted(self, names: Names) -> Ref:
        """The values of all places with the places' dim in front; of size one where they are one value."""
        if names not in self.known:
            found = self.lift(names)
            got, wanted = self.builder.type(found), self.builder.types[names[0]]
            if (got.shape[1:], got.dtype) != (wanted.shape, wanted.dtype):  # a number promotes less than a tensor
                raise Unlike(names[0])
            self.known[names] = found
        return self.known[names]

    def lift(self, names: Names) -> Ref:
        if len(set(names)) == 1:
            return self.builder.emit("aten.unsqueeze.default", Ref(names[0]), 0)
        nodes = [self.by_name.get(name) for name in names]
        first = nodes[0]
        found = [node for node in nodes if node is not None and first is not None and alike(node, first)]
        if first is None or len(found) != len(names):
            raise Unlike(names[0])
        if first.op == "aten.select.int":
            (_, dim, _), indices = first.args, [node.args[2] for node in found]
            size = self.builder.types[first.operands[0]].shape[int(str(dim))]
            if len({node.operands[0] for node in found}) == 1 and indices == list(range(size)):
                return self.front(Ref(first.operands[0]), int(str(dim)))
        if any(node.args[1:] != first.args[1:] for node in found if node.op not in SEVERAL):
            raise Unlike(first.op)
        lift = LIFTS.get(first.op)
        if lift is None:
            raise Unlike(first.op)
        columns = [tuple(node.operands[i] for node in found) for i in range(len(first.operands))]
        return lift(self, first, columns)

    def front(self, x: Ref, dim: int) -> Ref:
        rank = len(self.builder.shape(x))
        return self.builder.permute(x, (dim, *(d for d in range(rank) if d != dim)))

    def aligned(self, names: Names, rank: int) -> Ref:
        """Lifted values with dims of size one behind the places' dim, so that they have ``rank`` more dims than it."""
        x = self.lifted(names)
        shape = self.builder.shape(x)
        return self.builder.reshape(x, (shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:]))


Lift = Callable[[Vectorizer, Node, Sequence[Names]], Ref]


def alike(node: Node, other: Node) -> bool:
    """Whether two nodes differ at most in what they read, or in the place that they select."""
    same = (node.op, node.type, node.kwargs) == (other.op, other.type, other.kwargs)
    return same and len(node.operands) == len(other.operands) and numbers(node) == numbers(other)


def numbers(node: Node) -> tuple[Argument, ...]:
    args = node.args[:2] if node.op == "aten.select.int" else node.args
    return tuple(None if isinstance(arg, Ref) else arg for arg in args)


def elementwise(t: Vectorizer, node: Node, columns: Sequence[Names]) -> Ref:
    rank, lifted = len(node.type.shape), iter(columns)
    args = tuple(t.aligned(next(lifted), rank) if isinstance(arg, Ref) else arg for arg in node.args)
    return t.builder.emit(node.op, *args, kwargs=node.kwargs)


def product(t: Vectorizer, node: Node, columns: Sequence[Names]) -> Ref:
    ranks = [len(t.builder.types[names[0]].shape) for names in columns]
    if min(ranks) < 2:
        raise Unlike(node.op)
    return t.builder.emit(node.op, *(t.aligned(names, max(ranks)) for names in columns))


def linear(t: Vectorizer, node: Node, columns: Sequence[Names]) -> Ref:
    """The weight and the bias are the same for all places."""
    if any(len(set(names)) != 1 for names in columns[1:]):
        raise Unlike(node.op)
    return t.builder.emit(node.op, t.lifted(columns[0]), *(Ref(names[0]) for names in columns[1:]))


def along(t: Vectorizer, node: Node, columns: Sequence[Names]) -> Ref:
    """An operator whose second argument is a dim, or several, and maybe its third another one."""
    moved = [tuple(d + 1 for d in arg) if isinstance(arg, tuple) else arg for arg in node.args[1:]]
    dims = 2 if node.op == "aten.transpose.int" else 1
    moved[:dims] = [arg + 1 if isinstance(arg, int) else arg for arg in moved[:dims]]
    return t.builder.emit(node.op, t.lifted(columns[0]), *moved, kwargs=node.kwargs)


def permuted(t: Vectorizer, node: Node, columns: Sequence[Names]) -> Ref:
    (dims,) = node.args[1:]
    assert isinstance(dims, tuple)
    return t.builder.permute(t.lifted(columns[0]), (0, *(d + 1 for d in dims)))


def shaped(t: Vectorizer, node: Node, columns: Sequence[Names]) -> Ref:
    x = t.lifted(columns[0]) if node.op == "aten.reshape.default" else t.aligned(columns[0], len(node.type.shape))
    return t.builder.emit(node.op, x, (t.builder.shape(x)[0], *node.type.shape))


DIMMED = (
    "aten.unsqueeze.default", "aten.squeeze.dim", "aten.select.int", "aten.slice.Tensor", "aten.transpose.int",
    "aten.sum.dim_IntList", "aten.mean.dim", "aten.softmax.int",
)  # fmt: skip
SEVERAL = frozenset({"aten.matmul.default", "aten.linear.default", *ELEMENTWISE})
"""Operators whose further arguments are operands, or numbers that ``alike`` compares."""

LIFTS: Mapping[str, Lift] = {
    **{op: elementwise for op in (*ELEMENTWISE, "aten.to.dtype")},
    **{op: along for op in DIMMED},
    "aten.matmul.default": product,
    "aten.linear.default": linear,
    "aten.permute.default": permuted,
    "aten.reshape.default": shaped,
    "aten.expand.default": shaped,
}
