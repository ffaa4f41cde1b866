"""Which products of a block run as one: those of one value with weights of their own, which may lie side by side.

Queries, keys and values, or gate and up, become one product of each rank's columns, and in the backward one for the
input's gradient and one for the weights'. Weights that lie [k, n], as GPT-2's, join where all are of one size. Each
result is then a part of one tensor, and the backward, where it reads a part, would keep the whole: so where it reads
some and not others, those that it reads are copied.

One product is fewer calls, and less narrow where an axis has cut the columns; but its parts are read in strides, and
their gradients joined by a copy. So weights that are whole stay apart, as their author has them, unless they are pieces
of one: a fused projection stays one product.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType

from autoplan.ir.graph import Block
from autoplan.ir.typed_program import Compute, JoinedProducts, Statement, TypedValue
from autoplan.rules.kept_values import keeps_of
from autoplan.rules.registry import Rule, rule_of

LINEAR, MATMUL = "aten.linear.default", "aten.matmul.default"


def joined_products(
    block: Block, body: Sequence[Statement], parameters: Sequence[TypedValue], again: Set[str],
    hidden: Sequence[tuple[str, tuple[str, ...]]], apart: Mapping[str, int] = MappingProxyType({}),
) -> tuple[JoinedProducts, ...]:  # fmt: skip
    """Of a lowered block.

    again   values that a segment computes again, for which it keeps what they read
    hidden  ``LoweredBlock.hidden``: such products run together whole, or one by one
    apart   products that don't run with those of another number, nor of none
    """
    matrices = {p.name: p for p in parameters if len(p.local_shape) == 2}
    uses = Counter(name for statement in body for name in statement.reads)
    found: dict[tuple[str, str, int | None], list[Compute]] = {}
    for statement in body:
        if isinstance(statement, Compute) and joins(statement):
            value, weight = statement.reads
            if weight in matrices and uses[weight] == 1:
                found.setdefault((value, statement.op, apart.get(statement.value.name)), []).append(statement)
    kept, together = kept_by_readers(block, body, again), dict(hidden)
    groups = []
    for (value, op, _), products in found.items():
        names = tuple(product.value.name for product in products)
        weights = [matrices[product.reads[1]] for product in products]
        alike = {(w.type.dtype, w.local_shape if op == MATMUL else w.local_shape[1:]) for w in weights}
        fits = len(names) > 1 and len(alike) == 1 and together.get(value, names) == names
        if fits and worth_joining(weights) and not again & set(names):
            read = [place for place, name in enumerate(names) if name in kept]
            groups.append(JoinedProducts(names, tuple(read) if len(read) < len(names) else ()))
    return tuple(groups)


def worth_joining(weights: Sequence[TypedValue]) -> bool:
    """Whether they are narrow, or pieces of one of the user's (``ir.graph.Parameter``)."""
    return all(w.local_shape != w.type.shape for w in weights) or len({w.name.partition("[")[0] for w in weights}) == 1


def joins(compute: Compute) -> bool:
    """Whether it is a plain product of a value with a matrix."""
    plain = compute.op in (LINEAR, MATMUL) and not compute.kwargs and not compute.body and compute.divisor == 1
    return plain and len(compute.reads) == 2 == len(compute.args)


def kept_by_readers(block: Block, body: Sequence[Statement], again: Set[str]) -> frozenset[str]:
    """The values that the backward reads, or what is computed again in it, themselves or as a view."""
    types = block.types()
    rules = {node.name: rule_of(node, types) for node in block.nodes}
    keeps = keeps_of(block, rules, block.carries_gradient(), frozenset(), frozenset())
    kept: set[str] = set()
    for statement in reversed(body):
        if isinstance(statement, Compute):
            kept |= read_by(statement, rules, keeps, kept, again)
    return frozenset(kept)


def read_by(
    compute: Compute, rules: Mapping[str, Rule], keeps: Mapping[str, tuple[int | str, ...]], kept: Set[str],
    again: Set[str],
) -> set[str]:  # fmt: skip
    """Of its operands those that are kept for its own backward, or for that of what reads it."""
    name = compute.value.name
    if name in again:
        return set(compute.reads)
    if rules[name].cost == "free":
        return {compute.reads[0]} if name in kept and compute.reads else set()
    return {compute.reads[place] for place in keeps[name] if isinstance(place, int)}
