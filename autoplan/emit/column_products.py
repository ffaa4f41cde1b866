"""Products that read one redistributed value, as one call whose backward hides the sum of that value's gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoplan.emit.biased_products import fused_biases
from autoplan.ir.graph import Ref
from autoplan.ir.typed_program import Compute, LoweredBlock, Move, Statement

GATHER = "all_gather"


@dataclass(frozen=True)
class ColumnProducts:
    """``q, k, v = column_linear(x, (q_weight, k_weight, v_weight), self.tp)`` (``runtime.ops.column_linear``).

    move      the redistribution; one that gathers is a line of its own before
    products  in the order of the program
    biases    of each, None where it has none
    results   the value that each gives: itself, or the sum with its bias
    """

    move: Move
    products: tuple[Compute, ...]
    biases: tuple[str | None, ...]
    results: tuple[str, ...]

    @property
    def gathers(self) -> bool:
        return self.move.collectives[0].op == GATHER

    def source(self, name_of: Callable[[str], str], axis: str) -> str:
        """The call, without what it is assigned to."""
        step = self.move.collectives[0]
        weights = ", ".join(name_of(product.reads[1]) for product in self.products)
        given = [name_of(self.move.source), *([name_of(self.move.value.name)] if self.gathers else [])]
        given += [f"({weights}{',' * (len(self.products) == 1)})", *(map(repr, step.dims)), axis]
        if any(self.biases):
            biases = ", ".join("None" if bias is None else name_of(bias) for bias in self.biases)
            given.append(f"biases=({biases}{',' * (len(self.biases) == 1)})")
        if self.products[0].op == "aten.matmul.default":
            given.append("transposed=True")
        return f"{'gathered_linear' if self.gathers else 'column_linear'}({', '.join(given)})"


@dataclass(frozen=True)
class Lines:
    """Which statements of a block's body share a line of the program.

    fused   sums that are written with the product that they add a bias to, and this product
    column  products that one call computes, by the first of them
    """

    fused: Mapping[str, str]
    column: Mapping[str, ColumnProducts]

    @staticmethod
    def of(block: LoweredBlock) -> Lines:
        return Lines(fused_biases(block), column_products(block))

    @cached_property
    def line_of(self) -> dict[str, str]:
        """The value of the line on which a statement's is computed, where it shares one."""
        found = {name: add for add, product in self.fused.items() for name in (add, product)}
        for call in self.column.values():
            names = [*(p.value.name for p in call.products), *call.results]
            found |= dict.fromkeys([*names, *([] if call.gathers else [call.move.value.name])], call.results[0])
        return found

    @cached_property
    def elsewhere(self) -> frozenset[str]:
        """Values of statements that have no line at their place."""
        joined = {name for call in self.column.values() for name in call.results}
        return frozenset(self.line_of) - self.column.keys() - (self.fused.keys() - joined)

    @cached_property
    def gathered(self) -> frozenset[str]:
        """Values that are gathered for products which sum the gradient themselves."""
        return frozenset(call.move.value.name for call in self.column.values() if call.gathers)


NO_LINES = Lines({}, {})


def column_products(block: LoweredBlock) -> dict[str, ColumnProducts]:
    """The calls of a block (``LoweredBlock.hidden``), by the value of their first line."""
    fused = {product: add for add, product in fused_biases(block).items()}
    statements: dict[str, Statement] = {s.value.name: s for s in block.body}
    found = {}
    for moved, names in block.hidden:
        move, products = statements[moved], [statements[name] for name in names]
        assert isinstance(move, Move)
        column = tuple(p for p in products if isinstance(p, Compute))
        adds = [fused.get(p.value.name) for p in column]
        results = tuple(a or p.value.name for a, p in zip(adds, column, strict=True))
        biases = tuple(bias_of(statements[a]) if a else None for a in adds)
        found[column[0].value.name] = ColumnProducts(move, column, biases, results)
    return found


def bias_of(add: Statement) -> str:
    assert isinstance(add, Compute) and isinstance(add.args[1], Ref)
    return add.args[1].name
