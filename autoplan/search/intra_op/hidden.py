"""What weights' gradients hide of the sums of their products' inputs' gradients, for each arc of a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoplan.ir.layout import Layout
from autoplan.redistribution.hidden import STEPS
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.flows import LayoutPaths
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.shared_decisions import OperatorKey
from autoplan.search.intra_op.template import Value


@dataclass
class HiddenSums:
    """What is hidden on one mesh, for each arc of a value; operators that are alike are priced once.

    weights_s  seconds of an operator's weights' gradients, by the operator and the layout of its first operand
    """

    form: OperatorInputs
    weights_s: dict[tuple[OperatorKey, Layout], float] = field(default_factory=dict)
    known: dict[tuple, np.ndarray] = field(default_factory=dict)

    def arcs_s(self, value: Value, ways: LayoutPaths) -> np.ndarray:
        """[arcs] seconds that are hidden where all products that the value is for take it from there. Where one of them
        takes it in another layout, fewer are (``block_cost.account``)."""
        nothing = np.zeros(len(ways.arcs))
        if not value.fed or not ways.carries or not self.form.prices.hides or self.form.prices.device.blocking:
            return nothing
        first = tuple(self.first((value.block, name)) for name in value.fed)
        key = (value.ways, first)
        if key not in self.known:
            shared = set.intersection(*(set(taken.tolist()) for _, taken in value.sinks))
            found = [self.arc_s(ways, a, b, first) if b in shared else 0.0 for a, b in ways.arcs.tolist()]
            self.known[key] = np.array(found, dtype=float) if found else nothing
        return self.known[key]

    def first(self, key: OperatorKey) -> OperatorKey:
        """The first operator that is like one, and may do the same."""
        first = self.form.prepared.alike.get(key, key)
        return first if self.form.options[first] == self.form.options[key] else key

    def arc_s(self, ways: LayoutPaths, source: int, target: int, products: Sequence[OperatorKey]) -> float:
        prices, (here, there) = self.form.prices, (ways.layouts[source], ways.layouts[target])
        steps = prices.move_steps(ways.kind, here, there, ways.carries) or ()
        if len(steps) != 1 or steps[0].op not in STEPS or not steps[0].backward:
            return 0.0
        sum_s = prices.step(steps[0], ways.carries, 0, ways.kind).backward_s
        return prices.under_products_s(sum_s, sum(self.product_s(key, there) for key in products))

    def product_s(self, key: OperatorKey, taken: Layout) -> float:
        """The seconds of the weight's gradient of a product that takes its first operand so: split as far as it is in
        any such strategy, for one that leaves the weight whole takes its product's time many times over."""
        if (key, taken) not in self.weights_s:
            form, rank = self.form, len(taken.dims)
            operator = form.operators[key[0]][key[1]]
            fitting = [s for s in form.options[key] if s.input(0, rank, form.mesh) == taken and is_plain(s)]
            seconds = [form.prices.operator(operator, strategy).weights_s for strategy in fitting]
            self.weights_s[key, taken] = min(seconds, default=0.0)
        return self.weights_s[key, taken]


def is_plain(strategy: Strategy) -> bool:
    return not any(way.body or way.scaled for _, way in strategy.axes)
