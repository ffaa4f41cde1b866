"""Redistributions in chunks beside products: what these save on a problem's arcs, and into how many each is cut.

Which may be cut, ``redistribution.chunks`` says; what it takes, ``cost.chunk_seconds``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoplan.cost import Operator, Prices
from autoplan.cost.chunk_seconds import Product, best_chunks
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Block
from autoplan.ir.layout import Layout
from autoplan.redistribution.chunks import GATHER, SUMS, cut, products_beside, row_products, rows_of
from autoplan.redistribution.hidden import is_plain
from autoplan.search.intra_op.flows import LayoutPaths
from autoplan.search.intra_op.hidden import HiddenSums
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.shared_decisions import OperatorKey
from autoplan.search.intra_op.template import Value

WHOLE = (1,)


def in_chunks(
    block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices
) -> BlockChoice:
    """The choice with those of its redistributions cut that may be, each into as many chunks as is quickest."""
    if prices.chunks == WHOLE:
        return choice
    types, carries, strategies = block.types(), block.carries_gradient(), dict(choice.strategies)
    hops = list(choice.hops)
    for number, nodes in products_beside(block, choice, prices.mesh).items():
        hop = hops[number]
        (step,) = hop.steps or ()
        goes_back, products = hop.value in carries, [(operators[n.name], strategies[n.name]) for n in nodes]
        rows = rows_of(step, types[hop.value], hop.source, hop.target, prices.mesh)
        best, _ = best_chunks(prices, step, prices.step(step, goes_back), rows, products, goes_back)
        hops[number] = cut(hop, best)
    return replace(choice, hops=tuple(hops))


@dataclass
class ChunkedArcs:
    """What chunks save on one mesh, for each arc of a value; values that are alike are priced once."""

    form: OperatorInputs
    hidden: HiddenSums
    known: dict[tuple, np.ndarray] = field(default_factory=dict)
    made: dict[int, frozenset[str]] = field(default_factory=dict)

    def saved_s(self, value: Value, ways: LayoutPaths) -> np.ndarray:
        """[arcs] seconds that are saved where all products that the value is for take it from there, or where nothing
        else reads the product that gives it. None are lost: what is asked to be cut shall not lie otherwise for that.
        """
        nothing, prices = np.zeros(len(ways.arcs)), self.form.prices
        if prices.chunks == WHOLE or not prices.hides:
            return nothing
        row, fed = value.name in self.row_products(value.block), value.fed
        if not row and not fed:
            return nothing
        own = self.hidden.first((value.block, value.name)) if row else None
        readers = tuple(self.hidden.first((value.block, name)) for name in fed)
        key = (value.ways, own, readers)
        if key not in self.known:
            shared = set.intersection(*(set(taken.tolist()) for _, taken in value.sinks)) if fed else set()
            found = [self.arc_s(ways, a, b, own, readers if b in shared else ()) for a, b in ways.arcs.tolist()]
            self.known[key] = np.array(found, dtype=float)
        return self.known[key]

    def row_products(self, block: int) -> frozenset[str]:
        if block not in self.made:
            self.made[block] = frozenset(node.name for node in row_products(self.form.model.blocks[block]))
        return self.made[block]

    def arc_s(
        self, ways: LayoutPaths, source: int, target: int, own: OperatorKey | None, readers: Sequence[OperatorKey]
    ) -> float:
        prices, here, there = self.form.prices, ways.layouts[source], ways.layouts[target]
        steps = prices.move_steps(ways.kind, here, there, ways.carries) or ()
        if len(steps) != 1 or steps[0].op not in (GATHER, *SUMS):
            return 0.0
        if steps[0].op == GATHER:
            found = [self.product(key, there, reads=True) for key in readers]
        else:
            found = [self.product(own, here, reads=False)] if own is not None else []
        products = [product for product in found if product is not None]
        if not products or len(products) < len(found):
            return 0.0
        rows, moved = rows_of(steps[0], ways.kind, here, there, prices.mesh), prices.step(steps[0], ways.carries)
        return max(0.0, best_chunks(prices, steps[0], moved, rows, products, ways.carries)[1])

    def product(self, key: OperatorKey, layout: Layout, *, reads: bool) -> Product | None:
        """An operator by the quickest of its plain strategies that take their first operand in a layout, or give their
        result in it; None where there is none."""
        form, rank = self.form, len(layout.dims)
        operator = form.operators[key[0]][key[1]]
        fitting = [
            s for s in form.options[key]
            if is_plain(s) and (s.input(0, rank, form.mesh) if reads else s.output(rank, form.mesh)) == layout
        ]  # fmt: skip
        best = min(fitting, key=lambda s: form.prices.operator_s(operator, s), default=None)
        return None if best is None else (operator, best)
