"""The planner against brute force on 2×2: every operator with every argument is tried from every layout.

A step is legal where the simulator says so: forward it makes the tensor dealt out in another layout, backward the
gradient dealt out in the dual of the first. Its price is what was measured. Over these steps Bellman and Ford find the
least price of every pair of layouts; the planner, who knows tables instead, has to find the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from autoplan.ir.layout import I, Layout, P, R, State
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.exchange.messages import write_spec
from tests.oracles.redistribution import Execution, execute, execute_backward
from tests.oracles.redistribution.group import OPERATORS
from tests.support.layouts import SQUARE, cut, ordered_layouts
from tests.support.redistribution import Judge
from tests.support.sampling import slow

GROUPS = [("x",), ("y",), ("x", "y"), ("y", "x")]
BY_SPEC = ("permute", "exchange", "exchange_invariant", "exchange_sum")
DIMS = {"all_gather": 1, "all_gather_invariant": 1, "shard": 1, "shard_invariant": 1, "reduce_scatter": 1,
        "reduce_scatter_max": 1, "shard_to_partial": 1, "all_to_all": 2}  # fmt: skip
"""How many dims an operator takes; the others take none."""


def candidates(layout: Layout, shape: Sequence[int]) -> Iterator[Collective]:
    """Every operator with every argument, sensible or not."""
    rank = len(shape)
    for op, axes in itertools.product(OPERATORS, GROUPS):
        if op in BY_SPEC:
            for spec, shared in specs(layout, shape, axes):
                yield Collective(op, axes, (), "", "", 0, 0, spec, shared)
        else:
            for dims in itertools.permutations(range(rank), DIMS.get(op, 0)):
                yield Collective(op, axes, dims, "", "", 0, 0)


def specs(layout: Layout, shape: Sequence[int], axes: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """From where the group's axes are to wherever they could be, and the tensor that the group shares; none where an
    axis that is not the group's lies inside one that is."""
    before = tuple(tuple(axis for axis in split if axis in axes) for split in layout.dims)
    outer = tuple(tuple(axis for axis in split if axis not in axes) for split in layout.dims)
    if any(split != (*outside, *inside) for split, outside, inside in zip(layout.dims, outer, before, strict=True)):
        return
    shared = tuple(n // math.prod(SQUARE.size(a) for a in split) for n, split in zip(shape, outer, strict=True))
    for count in range(len(axes) + 1):
        for order in itertools.permutations(axes, count):
            for after in cut(order, len(shape)):
                yield write_spec(before, after), shared


def steps(court: Judge, layouts: Sequence[Layout]) -> dict[tuple[Layout, Layout], float]:
    """The price of the cheapest single step between any two layouts, where there is one."""
    found: dict[tuple[Layout, Layout], float] = {}
    for source in layouts:
        for step in candidates(source, court.shape):
            try:
                done = execute([step], court.value(source), SQUARE)
            except (ValueError, IndexError):
                continue  # no such part, or no such permute
            for target in layouts:
                if source != target and leads(court, done, target) and not leaves_summands(step, target):
                    price = priced(court, step, done, source, target)
                    if price < found.get((source, target), math.inf):
                        found[source, target] = price
    return found


def leads(court: Judge, done: Execution, target: Layout) -> bool:
    wanted = court.value(target)
    if any(a.shape != b.shape for a, b in zip(done.parts, wanted, strict=True)):
        return False
    return tensor_of(court, done, target, court.whole)


def tensor_of(court: Judge, done: Execution, layout: Layout, whole: np.ndarray) -> bool:
    """Whether the parts are this tensor in this layout; replicas that differ are not."""
    try:
        return court.same(done.parts, court.value(layout), layout, whole)
    except ValueError:
        return False


def leaves_summands(step: Collective, target: Layout) -> bool:
    """An exchange_sum leads from P to S alone: were an axis of its group left over, who held the summands?"""
    return step.op == "exchange_sum" and any(axis in step.axes for axis, _ in target.rest)


def priced(court: Judge, step: Collective, done: Execution, source: Layout, target: Layout) -> float:
    """Elements, forward and backward; infinite where the backward is not the adjoint."""
    if not court.carries:
        return done.busy_elements
    if OPERATORS[step.op][1] is None:
        return math.inf
    try:
        back = execute_backward([step], court.slope(target), SQUARE)
        right = court.right_slope(back.parts, source)
    except ValueError:
        return math.inf
    return done.busy_elements + back.busy_elements if right else math.inf


def bellman_ford(
    prices: Mapping[tuple[Layout, Layout], float], layouts: Sequence[Layout], source: Layout
) -> dict[Layout, float]:
    least = dict.fromkeys(layouts, math.inf) | {source: 0.0}
    for _ in layouts:
        for (here, there), price in prices.items():
            least[there] = min(least[there], least[here] + price)
    return least


KINDS = [((R, I, P), True), ((R, P), False)]


@pytest.mark.parametrize(
    ("states", "carries", "rank"),
    [(*KINDS[0], 1), slow((*KINDS[0], 2)), slow((*KINDS[1], 1)), (*KINDS[1], 2)],
    ids=["carried-1", "carried-2", "neutral-1", "neutral-2"],
)
def test_the_planner_finds_what_brute_force_finds(states: tuple[State, ...], carries: bool, rank: int) -> None:
    court = Judge((4,) * rank, SQUARE, carries)
    layouts = ordered_layouts(rank, SQUARE, states)
    prices = steps(court, layouts)
    held = {layout: court.value(layout)[0].size for layout in layouts}
    for limit in set(held.values()):
        allowed = [layout for layout in layouts if held[layout] <= limit]
        within = {pair: price for pair, price in prices.items() if set(pair) <= set(allowed) and price < math.inf}
        for source in allowed:
            least = bellman_ford(within, allowed, source)
            for target in allowed:
                if max(held[source], held[target]) == limit:
                    plan = court.planner.plan(source, target)
                    assert plan.seconds == 4 * least[target], f"{source} -> {target}: {plan}, found {least[target]}"
