"""Products that read one value, as one call: as one product where their weights lie side by side, and hiding the sum of
that value's gradient where it was redistributed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.emit.calls.biased_products import fused_biases
from autoplan.emit.unmoved_values import unmoved_in
from autoplan.ir.graph import Ref
from autoplan.ir.typed_program import Compute, LoweredBlock, Move, Statement, TokenFlight
from autoplan.redistribution.chunks import chunked_sums

GATHER, REDUCE = "all_gather", "all_reduce"
PRODUCTS = ("aten.linear.default", "aten.matmul.default")


@dataclass(frozen=True)
class ColumnProducts:
    """``q, k, v = column_linear(x, (q_weight, k_weight, v_weight), self.tp)`` (``runtime.ops.column_linear``).

    move      the redistribution; one that gathers once, and whole, is a line of its own before; None: ``joined_linear``
    products  in the order of the program
    biases    of each, None where it has none
    results   the value that each gives: itself, or the sum with its bias
    joined    whether the weights, and the biases, lie side by side
    apart     places of results that are copied out of the joined product
    again     what is gathered isn't kept where a segment recomputes selectively: the call gathers, twice
    """

    move: Move | None
    products: tuple[Compute, ...]
    biases: tuple[str | None, ...]
    results: tuple[str, ...]
    joined: bool = False
    apart: tuple[int, ...] = ()
    again: bool = False

    @property
    def gathers(self) -> bool:
        return self.move is not None and self.move.collectives[0].op == GATHER

    @property
    def has_line(self) -> bool:
        """Whether the redistribution is a line before the call."""
        return self.gathers and not self.again and self.chunks == 1

    @property
    def chunks(self) -> int:
        """Into how many what is gathered is cut."""
        return 1 if self.move is None else self.move.collectives[0].chunks

    @property
    def side_by_side(self) -> tuple[tuple[str, ...], ...]:
        """Parameters that lie one after another in one memory."""
        if not self.joined:
            return ()
        weights = tuple(product.reads[1] for product in self.products)
        biases = tuple(bias for bias in self.biases if bias is not None)
        return (weights, biases) if biases else (weights,)

    @property
    def called(self) -> str:
        if self.move is None:
            return "joined_linear"
        if self.chunks > 1:
            return "chunked_linear"
        return "regathered_linear" if self.again else "gathered_linear" if self.gathers else "column_linear"

    def source(self, name_of: Callable[[str], str], axis: str) -> str:
        """The call, without what it is assigned to."""
        weights = tuple_of(name_of(product.reads[1]) for product in self.products)
        if self.move is None:
            given = [name_of(self.products[0].reads[0]), weights]
        else:
            given = [name_of(self.move.source), *([name_of(self.move.value.name)] if self.has_line else [])]
            given += [weights, *(map(repr, self.move.collectives[0].dims)), axis]
            given += [str(self.chunks)] if self.chunks > 1 else []
            given += ["keeps(self)"] if self.again else []
        if any(self.biases):
            given.append(f"biases={tuple_of('None' if bias is None else name_of(bias) for bias in self.biases)}")
        if self.products[0].op == "aten.matmul.default":
            given.append("transposed=True")
        if self.apart and self.chunks == 1:  # of chunks each is
            given.append(f"apart={self.apart}")
        return f"{self.called}({', '.join(given)})"


@dataclass(frozen=True)
class RowProduct:
    """``o_proj_scattered = row_linear(x, o_proj_weight, 1, self.tp, 4)`` (``runtime.ops.chunked_linear``)."""

    product: Compute
    move: Move

    def source(self, name_of: Callable[[str], str], axis: str) -> str:
        """The call, without what it is assigned to."""
        (step,) = self.move.collectives
        dim = repr(step.dims[0]) if step.dims else "None"
        given = [*map(name_of, self.product.reads), dim, axis, str(step.chunks)]
        given += ["transposed=True"] if self.product.op == "aten.matmul.default" else []
        return f"row_linear({', '.join(given)})"


def tuple_of(sources: Iterable[str]) -> str:
    given = list(sources)
    return f"({', '.join(given)}{',' * (len(given) == 1)})"


@dataclass(frozen=True)
class Lines:
    """Which statements of a block's body share a line of the program.

    fused     sums that are written with the product that they add a bias to, and this product
    column    products that one call computes, by the first of them
    in_place  sums over an axis that are taken where the product lies: nobody else reads it
    rows      products in chunks with the redistribution of what they give, by the value of that
    flights   mixtures in three calls, by the statement before which the first or the second is written
    same      values that have no line, and those that they are (``unmoved_in``)
    """

    fused: Mapping[str, str]
    column: Mapping[str, ColumnProducts]
    in_place: frozenset[str] = frozenset()
    rows: Mapping[str, RowProduct] = field(default_factory=dict)
    flights: Mapping[str, tuple[TokenFlight, ...]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(block: LoweredBlock) -> Lines:
        column = column_products(block)
        rows = {name: RowProduct(*pair) for name, pair in chunked_sums(block).items()}
        flights: dict[str, tuple[TokenFlight, ...]] = {}
        for each in block.flights:
            for place in (each.sent, each.run):
                flights[place] = (*flights.get(place, ()), each)
        in_place = reduced_in_place(block, column.values())
        return Lines(fused_biases(block), column, in_place, rows, flights, unmoved_in(block))

    @cached_property
    def line_of(self) -> dict[str, str]:
        """The value of the line on which a statement's is computed, where it shares one."""
        found = {name: add for add, product in self.fused.items() for name in (add, product)}
        for call in self.column.values():
            names = [*(p.value.name for p in call.products), *call.results]
            moved = [] if call.move is None or call.has_line else [call.move.value.name]
            found |= dict.fromkeys([*names, *moved], call.results[0])
        return found | {call.product.value.name: name for name, call in self.rows.items()}

    @cached_property
    def elsewhere(self) -> frozenset[str]:
        """Values of statements that have no line at their place."""
        joined = {name for call in self.column.values() for name in call.results}
        return frozenset(self.line_of) - self.column.keys() - (self.fused.keys() - joined)

    @cached_property
    def gathered(self) -> frozenset[str]:
        """Values that are gathered for products which sum the gradient themselves."""
        moves = (call.move for call in self.column.values() if call.has_line)
        return frozenset(move.value.name for move in moves if move is not None)


NO_LINES = Lines({}, {})


def column_products(block: LoweredBlock) -> dict[str, ColumnProducts]:
    """The calls of a block (``LoweredBlock.hidden``, ``LoweredBlock.joined``), by the value of their first line."""
    fused = {product: add for add, product in fused_biases(block).items()}
    statements: dict[str, Statement] = {s.value.name: s for s in block.body}
    joined = {group.products: group for group in block.joined}
    moves = {names: statements[moved] for moved, names in block.hidden}
    found = {}
    for names in dict.fromkeys((*moves, *joined)):
        move, group = moves.get(names), joined.get(names)
        assert move is None or isinstance(move, Move)
        column = tuple(p for p in map(statements.__getitem__, names) if isinstance(p, Compute))
        adds = [fused.get(p.value.name) for p in column]
        results = tuple(a or p.value.name for a, p in zip(adds, column, strict=True))
        biases = tuple(bias_of(statements[a]) if a else None for a in adds)
        whole = group is not None and (None not in biases or not any(biases))
        if move is not None or whole:
            apart = group.apart if group is not None and whole else ()
            again = move is not None and move.collectives[0].op == GATHER and move.value.name in block.again
            found[names[0]] = ColumnProducts(move, column, biases, results, whole, apart, again)
    return found


def reduced_in_place(block: LoweredBlock, calls: Iterable[ColumnProducts]) -> frozenset[str]:
    """Sums over an axis of products that nothing else reads: no backward reads a product's own result."""
    readers = Counter(name for statement in block.body for name in statement.reads)
    readers.update(value.name for value in block.outputs)
    parts = {product.value.name for call in calls for product in call.products}  # of one memory
    alone = {
        s.value.name for s in block.body
        if isinstance(s, Compute) and s.op in PRODUCTS and not s.body and readers[s.value.name] == 1
    } - parts  # fmt: skip
    return frozenset(
        s.value.name for s in block.body
        if isinstance(s, Move) and s.source in alone and [c.op for c in s.collectives[:1]] == [REDUCE]
    )  # fmt: skip


def bias_of(add: Statement) -> str:
    assert isinstance(add, Compute) and isinstance(add.args[1], Ref)
    return add.args[1].name
