"""What an operator says of its dims: which are the same, and which follow from which.

Read off its rule: dims in which one factor stands alone are one class, a compound dim is the product of its factors.
What a rule keeps apart because it can't be split (a padded dim before and after) is said here, operator by operator.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from autoplan.ir.graph import Argument, Node, Ref, TensorType
from autoplan.rules.registry import Rule, factor_sizes, rule_of
from autoplan.trace.rescale.dim_sizes import Equation, Product, Repeat, Slice, Sum, aligned
from autoplan.trace.rescale.dims import Dims, Key

KEEPS_SIZES = (
    "aten.cumsum.default", "aten.flip.default", "aten.roll.default", "aten.tril.default", "aten.triu.default",
)  # fmt: skip


@dataclass
class Relations:
    """What has been gathered of a model.

    made    dims whose size stands in the program
    opaque  (dim of an operand, by what) from which a size of the result is computed in a way that isn't said: it must
            not change
    """

    dims: Dims
    equations: list[Equation] = field(default_factory=list)
    made: list[Key] = field(default_factory=list)
    opaque: list[tuple[Key, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """One node with the keys of its dims."""

    scope: int
    node: Node
    operands: tuple[TensorType, ...]
    tables: bool  # whether what it reads may be a table that has no rows of the batch

    @property
    def why(self) -> str:
        return f"{self.node.name} ({self.node.op}{' of ' + self.node.module if self.node.module else ''})"

    def result(self, dim: int) -> Key:
        return self.scope, self.node.name, dim

    def operand(self, number: int, dim: int) -> Key:
        return self.scope, self.node.operands[number], dim

    def factor(self, name: str) -> Key:
        return self.scope, f"{self.node.name}:{name}", 0


def relate(relations: Relations, scope: int, node: Node, types: Mapping[str, TensorType], tables: bool) -> None:
    """Adds what one node says. Raises NoRuleError where it has no rule."""
    place = Place(scope, node, tuple(types[name] for name in node.operands), tables)
    dims = relations.dims
    for dim, size in enumerate(node.type.shape):
        dims.add(place.result(dim), size)
    if node.op == "aten.reshape.default":
        reshape(relations, place)
        return
    rule = rule_of(node, types)
    by_factors(relations, place, rule)
    special = SPECIAL.get(node.op)
    if special is not None:
        special(relations, place)
    elif node.op in KEEPS_SIZES:
        for dim in range(len(node.type.shape)):
            dims.unite(place.operand(0, dim), place.result(dim))
    else:
        own(relations, place, rule)


def by_factors(relations: Relations, place: Place, rule: Rule) -> None:
    """Dims of one factor are that factor's class; a compound dim is a product; a broadcast one stays 1."""
    dims, sizes = relations.dims, factor_sizes(rule, place.operands, place.node.type)
    for factor, size in sizes.items():
        dims.add(place.factor(factor), size)
    tensors = [(terms, number) for number, terms in enumerate(rule.operands)] + [(rule.result, -1)]
    for terms, number in tensors:
        for dim, term in enumerate(terms):
            key = place.result(dim) if number < 0 else place.operand(number, dim)
            if not term:
                dims.give(key, 1, place.why)
            elif len(term) == 1:
                dims.unite(key, place.factor(term[0]))
            else:
                relations.equations.append(Product((key,), tuple(place.factor(f) for f in term), place.why))


def own(relations: Relations, place: Place, rule: Rule) -> None:
    """Dims that only the result has: made with a size of their own, or computed from dims that only operands have."""
    read = {factor for terms in rule.operands for term in terms for factor in term}
    written = {factor for term in rule.result for factor in term}
    fresh = [f for f in rule.factors if f in written - read]
    if rule.shape_arg is not None:
        relations.made.extend(place.factor(f) for f in fresh)
    elif fresh:
        lost = [f for f in rule.factors if f in read - written]
        relations.opaque.extend((place.factor(f), place.why) for f in lost)


def reshape(relations: Relations, place: Place) -> None:
    """Wherever both shapes have a border between dims, what stands between borders has as many elements."""
    dims, keys = relations.dims, []
    for kind, at in ((place.operands[0], lambda d: place.operand(0, d)), (place.node.type, place.result)):
        keys.append([at(d) for d, size in enumerate(kind.shape) if size > 1])
        for d, size in enumerate(kind.shape):
            if size == 1:
                dims.give(at(d), 1, place.why)
    for before, after in aligned(dims, *keys):
        if len(before) == len(after) == 1:
            dims.unite(before[0], after[0])
        else:  # what is flattened stands on the left, its one dim on the right
            relations.equations.append(Product(before, after, place.why))


def slice_(relations: Relations, place: Place) -> None:
    _, dim, start, stop, *steps = place.node.args
    step = steps[0] if steps else 1
    assert isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)
    result = place.result(dim)
    relations.equations.append(Slice(place.operand(0, dim), result, start, stop, place.tables, place.why, step))
    if place.tables:
        relations.made.append(result)


def pad(relations: Relations, place: Place) -> None:
    pads = place.node.args[1]
    assert isinstance(pads, tuple)
    last = len(place.node.type.shape) - 1
    for i in range(0, len(pads), 2):
        dim, before, after = last - i // 2, pads[i], pads[i + 1]
        if before or after:
            more = before + after
            relations.equations.append(Sum((place.operand(0, dim),), more, place.result(dim), place.why))


def joined(relations: Relations, place: Place) -> None:
    """cat and diff: the parts stand one after the other; each difference takes one element."""
    names = ("x", "n", "dim") if place.node.op == "aten.diff.default" else ("tensors", "dim")
    given: dict[str, Argument] = dict(zip(names, place.node.args, strict=False)) | dict(place.node.kwargs)
    difference = "n" in names
    less, dim = given.get("n", int(difference)), given.get("dim", -1 if difference else 0)
    assert isinstance(dim, int) and isinstance(less, int)
    dim %= len(place.node.type.shape)
    parts = tuple(place.operand(i, dim) for i in range(len(place.operands)))
    relations.equations.append(Sum(parts, -less, place.result(dim), place.why))


def stack(relations: Relations, place: Place) -> None:
    dim = place.node.args[1] if len(place.node.args) > 1 else 0
    assert isinstance(dim, int)
    relations.dims.give(place.result(dim % len(place.node.type.shape)), len(place.operands), place.why)


def repeat(relations: Relations, place: Place) -> None:
    times = place.node.args[1]
    assert isinstance(times, tuple)
    new = len(times) - len(place.operands[0].shape)
    for dim, count in enumerate(times):
        assert isinstance(count, int)
        if dim < new:
            relations.made.append(place.result(dim))
        elif count > 1:
            relations.equations.append(Repeat(place.operand(0, dim - new), place.result(dim), count, place.why))


def counted(relations: Relations, place: Place) -> None:
    """As many counts as there are classes, which is an argument, however many labels are counted."""
    relations.dims.give(place.result(0), place.node.type.shape[0], place.why)


def scattered(relations: Relations, place: Place) -> None:
    """As many sums as the argument says, of experts or of nodes, which may be rows of the batch."""
    _, _, dim, *_ = place.node.args
    assert isinstance(dim, int)
    relations.made.append(place.result(dim % len(place.node.type.shape)))


def best(relations: Relations, place: Place) -> None:
    """As many of the largest as the argument says, of however many."""
    _, count, dim, *_ = place.node.args
    assert isinstance(count, int) and isinstance(dim, int)
    relations.dims.give(place.result(dim % len(place.node.type.shape)), count, place.why)


def arange(relations: Relations, place: Place) -> None:
    relations.made.append(place.result(0))


SPECIAL: Mapping[str, Callable[[Relations, Place], None]] = {
    "aten.slice.Tensor": slice_,
    "aten.constant_pad_nd.default": pad,
    "aten.cat.default": joined,
    "aten.diff.default": joined,
    "aten.stack.default": stack,
    "aten.repeat.default": repeat,
    "autoplan.count_classes": counted,
    "autoplan.scattered": scattered,
    "autoplan.top_indices": best,
    "aten.arange.default": arange,
    "aten.arange.start": arange,
    "aten.arange.start_step": arange,
}


def reads_table(node: Node, tables: Container[str]) -> bool:
    """Whether its first operand is a parameter, a buffer, or made of those and of sizes alone."""
    return bool(node.args) and isinstance(node.args[0], Ref) and node.args[0].name in tables
