"""Overlap: how much of each redistribution runs under the products of the operators that read it.

Weights' gradients hide the sums of inputs' gradients, and these what is gathered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoplan.ir.layout import Layout
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.hidden import STEPS, is_plain
from autoplan.search.intra_op.flows import LayoutPaths
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.shared_decisions import OperatorKey
from autoplan.search.intra_op.template import Value

ArcSeconds = Callable[[LayoutPaths, int, int, Sequence[OperatorKey]], float]


@dataclass
class HiddenSums:
    """What is hidden on one mesh, for each arc of a value; operators that are alike are priced once.

    products_s  seconds of the gradients of an operator's input and weight, by the operator and the layout of its first
                operand
    """

    form: OperatorInputs
    products_s: dict[tuple[OperatorKey, Layout], tuple[float, float]] = field(default_factory=dict)
    known: dict[tuple, np.ndarray] = field(default_factory=dict)

    def arcs_s(self, value: Value, ways: LayoutPaths) -> np.ndarray:
        """[arcs] seconds that are hidden where all products that the value is for take it from there. Where one of them
        takes it in another layout, fewer are (``block_cost.account``)."""
        if not ways.carries or self.form.prices.device.blocking:
            return np.zeros(len(ways.arcs))
        return self.each(value, ways, self.arc_s, 0.0)

    def again_s(self, value: Value, ways: LayoutPaths) -> np.ndarray:
        """[arcs] seconds that are left of a gather for these products where it runs again under the product that gives
        what is gathered its gradient (``runtime.ops.regathered_linear``); infinite where an arc gathers nothing."""
        if not ways.carries or not self.form.prices.training:
            return np.full(len(ways.arcs), np.inf)
        return self.each(value, ways, self.gather_s, np.inf)

    def each(self, value: Value, ways: LayoutPaths, seconds: ArcSeconds, other: float) -> np.ndarray:
        """[arcs] that products take a value from; ``other`` of those from which some don't, or something else does."""
        if not value.fed or not self.form.prices.hides:
            return np.full(len(ways.arcs), other)
        first = tuple(self.first((value.block, name)) for name in value.fed)
        key = (seconds.__name__, value.ways, first)
        if key not in self.known:
            shared = set.intersection(*(set(taken.tolist()) for _, taken in value.sinks))
            found = [seconds(ways, a, b, first) if b in shared else other for a, b in ways.arcs.tolist()]
            self.known[key] = np.array(found, dtype=float)
        return self.known[key]

    def first(self, key: OperatorKey) -> OperatorKey:
        """The first operator that is like one, and may do the same."""
        first = self.form.prepared.alike.get(key, key)
        return first if self.form.options[first] == self.form.options[key] else key

    def arc_s(self, ways: LayoutPaths, source: int, target: int, products: Sequence[OperatorKey]) -> float:
        prices, there = self.form.prices, ways.layouts[target]
        step = self.step(ways, source, target)
        if step is None:
            return 0.0
        sum_s = prices.step(step, ways.carries, 0, ways.kind).backward_s
        return prices.under_products_s(sum_s, sum(self.product_s(key, there)[1] for key in products))

    def gather_s(self, ways: LayoutPaths, source: int, target: int, products: Sequence[OperatorKey]) -> float:
        prices, there = self.form.prices, ways.layouts[target]
        step = self.step(ways, source, target)
        if step is None or not step.forward:
            return np.inf
        ahead_s = prices.step(step, ways.carries, 0, ways.kind).forward_s
        return ahead_s - prices.under_products_s(ahead_s, sum(self.product_s(key, there)[0] for key in products))

    def step(self, ways: LayoutPaths, source: int, target: int) -> Collective | None:
        """The one step of an arc into R whose adjoint sums; None where it is another."""
        here, there = ways.layouts[source], ways.layouts[target]
        steps = self.form.prices.move_steps(ways.kind, here, there, ways.carries) or ()
        return steps[0] if len(steps) == 1 and steps[0].op in STEPS and steps[0].backward else None

    def product_s(self, key: OperatorKey, taken: Layout) -> tuple[float, float]:
        """The seconds of the input's and of the weight's gradient of a product that takes its first operand so: split
        as far as it is in any such strategy, for one that leaves the weight whole takes its product's time many times
        over."""
        if (key, taken) not in self.products_s:
            form, rank = self.form, len(taken.dims)
            operator = form.operators[key[0]][key[1]]
            fitting = [s for s in form.options[key] if s.input(0, rank, form.mesh) == taken and is_plain(s)]
            costs = [form.prices.operator(operator, strategy) for strategy in fitting]
            inputs_s = min((cost.backward_s - cost.weights_s for cost in costs), default=0.0)
            self.products_s[key, taken] = inputs_s, min((cost.weights_s for cost in costs), default=0.0)
        return self.products_s[key, taken]
