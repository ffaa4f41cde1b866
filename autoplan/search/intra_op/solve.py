"""The operator problem handed to a solver, as an integer program in arrays (``milp``), and its answer read back.

The linear relaxation comes first: without a memory limit it is integral nearly always, and then it is the answer.
Otherwise the same problem is solved again in integers, a large one by ``solver.branching``, whose bound may leave a
gap. Only what was chosen is read back; the redistributions and the objective are computed anew from it, since a
solver's own figures are off by its tolerances.

Prices of bytes (``pareto``) give answers on a convex hull alone. Where segments may be recomputed that is enough: how
many of them are fills what lies between two answers. Where none may be, what lies between are other operators, and
what a block makes for a moment counts as much as what it keeps. There the same program has one row of all bytes that
are held at once (``milp.Memory``), and its limit is what changes from solve to solve.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoplan.ir.layout import Layout
from autoplan.redistribution.steiner_tree import cheapest_tree
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.milp import NO_WEIGHT, Memory, Milp, Weights, milp
from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.solver.branching import WHOLE, Branching
from autoplan.solver.engines import TIME_LIMIT_S, Engine, Infeasible, OutOfTime, engine, solver_name

__all__ = ["FloorOf", "Infeasible", "OutOfTime", "Solution", "Solver", "Weights", "solve", "solver_name"]

SCALE = 1e4  # the largest coefficient of the objective; far larger ones cost solvers minutes
ROUNDING = 1e-9  # relative, of bytes: what just fits may be said to need so much more
MOST_WAYS = 64  # of one tensor that are compared: over three axes it may be gathered from dozens of layouts
SUMMAND = 1e-9  # of the largest cost, that an operator which takes a summand costs beside: it decides between equals
TIE = 1e-6  # of all bytes, that all seconds count for between assignments that hold as many
GAP = 1e-6  # relative, of a problem without a memory limit
LARGE = 50_000  # variables from which on one without a limit is solved by branching here
SMALL, LIMITED_GAP = 1_000, 1e-3  # variables up to which one under a limit is solved to the end; the gap of larger ones

FloorOf = Callable[[int, float, np.ndarray], np.ndarray]
"""[prices] seconds of a microbatch that no operators of one segment of a block undercut: by the block, at a price of
parameters' bytes and at each of these, ascending, of bytes kept."""


@dataclass(frozen=True)
class Solution:
    """What was chosen.

    options      the option of each group
    trees        the arcs that each tensor pays for, as (from, to) indices of its layouts, sources first
    time_s       of one microbatch, over the whole chain
    state_bytes, kept_bytes   on one device, were it to hold the whole chain
    objective, bound   weighted; the bound is proven
    """

    options: tuple[int, ...]
    trees: tuple[tuple[tuple[int, int], ...], ...]
    time_s: float
    state_bytes: float
    kept_bytes: float
    objective: float
    bound: float
    variables: int = 0
    constraints: int = 0


def solve(problem: Problem, weights: Weights = NO_WEIGHT) -> Solution:
    """The cheapest assignment. Raises Infeasible where there is none."""
    return Solver(problem).solve(weights)


class Solver:
    """One problem, solved as often as its bytes are priced anew, or its memory limited; the constraints are built once.

    Each method raises Infeasible where there is no assignment, and where the solver has none in time.
    """

    def __init__(
        self, problem: Problem, memory: Memory | None = None, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        self.problem, self.memory, self.time_limit_s = problem, memory, time_limit_s
        self.under: dict[float, Solution | None] = {}

    def solve(self, weights: Weights = NO_WEIGHT) -> Solution:
        """The cheapest assignment at these prices of bytes."""
        if self.decided:
            return measure(self.problem, weights, [0] * len(self.problem.groups), math.inf)
        cost, more = self.fewest_summands(self.milp.cost(weights))
        options, bound = self.answer(cost, GAP, relaxed=True)
        if options is None:
            options, better = self.branched(weights) if len(cost) > LARGE and bound else self.answer(cost, GAP)
            bound = max(bound, better)
        return self.measured(weights, options, max(0.0, bound - more))

    def fewest_summands(self, cost: np.ndarray) -> tuple[np.ndarray, float]:
        """(a cost by which, of assignments that cost the same, the one with the fewest summands is the least; by how
        much that of none is raised more).

        In half precision each rank rounds its summands in every operator that they pass, before they are summed.
        """
        each = SUMMAND * float(cost.max()) * self.milp.summands
        return cost + each, float(np.maximum.reduceat(each, self.milp.first[:-1]).sum())

    def branched(self, weights: Weights) -> tuple[Sequence[int] | None, float]:
        """As ``Branching.run``."""
        cost = self.milp.cost(weights)

        def relaxed(allowed: np.ndarray) -> tuple[np.ndarray | None, float]:
            self.engine.allow(allowed)
            try:
                return self.run(cost, relaxed=True)
            except Infeasible:
                return None, math.inf

        def priced(options: Sequence[int]) -> float:
            try:
                return measure(self.problem, weights, options, math.inf).objective
            except Infeasible:
                return math.inf

        found = Branching([[*map(ways_of, group.options)] for group in self.problem.groups], relaxed, priced, GAP).run()
        self.engine.allow(np.ones(self.milp.first[-1], dtype=bool))
        return found

    def bounds(self, state: float, kept: np.ndarray) -> np.ndarray:
        """[prices] what no assignment undercuts at a price of bytes of parameters and each of these, ascending, of
        bytes kept: the relaxation's values.

        They are concave in the price: never below the line between two of them, nor above what the answer to one costs
        at the others' prices. Where these are the same, those between aren't solved for.
        """
        found, slopes, left = np.zeros(len(kept)), np.zeros(len(kept)), [(0, len(kept) - 1)]
        for number in {0, len(kept) - 1}:
            found[number], slopes[number] = self.relaxed(Weights(state, float(kept[number])))
        while left:
            one, two = left.pop()
            if two - one < 2:
                continue
            between, steps = slice(one + 1, two), kept[one + 1 : two]
            found[between] = np.interp(steps, kept[[one, two]], found[[one, two]])
            above = np.min([found[n] + slopes[n] * (steps - kept[n]) for n in (one, two)], axis=0) - found[between]
            if above.max() > GAP * found[two]:
                middle = one + 1 + int(above.argmax())
                found[middle], slopes[middle] = self.relaxed(Weights(state, float(kept[middle])))
                left += [(one, middle), (middle, two)]
        return found

    def relaxed(self, weights: Weights) -> tuple[float, float]:
        """(the relaxation's value, bytes that its answer keeps); zeros where it isn't solved in time."""
        if self.decided:
            solution = self.solve(weights)
            return solution.objective, solution.kept_bytes
        values, bound = self.run(self.milp.cost(weights), relaxed=True)
        return bound, 0.0 if values is None else float(self.milp.kept_bytes @ values)

    def quickest(self, limit: float) -> Solution | None:
        """The quickest assignment that holds so many bytes at most; None where none does."""
        if limit not in self.under:
            self.engine.limit(limit / self.milp.unit)
            try:
                cost, more = self.fewest_summands(self.milp.time_s)
                options, bound = self.answer(cost, self.limited_gap)
            except Infeasible:
                self.under[limit] = None
            else:
                self.under[limit] = self.measured(NO_WEIGHT, options, max(0.0, bound - more))
        return self.under[limit]

    @cached_property
    def leanest(self) -> Solution:
        """The assignment that holds fewest bytes, and of those that do the quickest."""
        assert self.memory is not None
        self.engine.limit(math.inf)
        options, _ = self.answer(self.milp.held(self.memory.held), self.limited_gap)
        least = self.measured(NO_WEIGHT, options, 0.0)
        return self.quickest(self.bytes(least) * (1 + ROUNDING)) or least

    @cached_property
    def leanest_between(self) -> Solution:
        """The same, not counting what stands for a moment: a block may hold less of it than its operators say."""
        assert self.memory is not None
        self.engine.limit(math.inf)
        held, time_s = self.milp.held(self.memory.held), self.milp.time_s
        held[-1] = 0.0
        cost = held / max(held.max(), 1.0) + TIE * time_s / (time_s.max() or 1.0)
        options, _ = self.answer(cost, self.limited_gap)
        return self.measured(NO_WEIGHT, options, 0.0)

    def bytes(self, solution: Solution) -> float:
        """That an assignment holds at once."""
        assert self.memory is not None
        held, pairs = self.memory.held, zip(self.memory.working, solution.options, strict=True)
        working = max((float(sizes[option]) for sizes, option in pairs if len(sizes)), default=0.0)
        return held.state * solution.state_bytes + held.kept * solution.kept_bytes + working

    @property
    def decided(self) -> bool:
        return all(len(group.options) == 1 for group in self.problem.groups)

    @cached_property
    def milp(self) -> Milp:
        if not all(group.options for group in self.problem.groups):
            raise Infeasible("a group has no options")
        return milp(self.problem, self.memory)

    @cached_property
    def engine(self) -> Engine:
        return engine(self.milp.program, self.time_limit_s)

    @property
    def limited_gap(self) -> float:
        return LIMITED_GAP if self.problem.variables > SMALL else 0.0

    def answer(
        self, cost: np.ndarray, gap: float = 0.0, *, relaxed: bool = False
    ) -> tuple[Sequence[int] | None, float]:
        """(the option taken in each group, None where some is a fraction; what no assignment costs less than)."""
        values, bound = self.run(cost, gap, relaxed=relaxed)
        return options_of(values, self.milp.first), bound

    def run(self, cost: np.ndarray, gap: float = 0.0, *, relaxed: bool = False) -> tuple[np.ndarray | None, float]:
        """(the variables, None where none were found; what no assignment costs less than)."""
        largest = float(cost.max())
        scale = SCALE / largest if largest > 0 else 1.0
        found = self.engine.run(cost * scale, relaxed=relaxed, gap=gap)
        return found.values, found.bound / scale

    def measured(self, weights: Weights, options: Sequence[int] | None, bound: float) -> Solution:
        if options is None:
            raise OutOfTime(f"the solver found nothing within {self.time_limit_s:.0f} s")
        program = self.milp.program
        return measure(self.problem, weights, options, bound, (program.variables, program.constraints))


def ways_of(option: Strategy | Layout) -> tuple[object, ...]:
    """What an option does on each axis."""
    if isinstance(option, Strategy):
        return tuple(way for _, way in option.axes)
    return tuple(option.states().values())


def options_of(values: np.ndarray | None, first: np.ndarray) -> list[int] | None:
    """The option taken in each group; None where one is fractional, or nothing was found."""
    if values is None:
        return None
    options = values[: first[-1]]
    largest = np.maximum.reduceat(options, first[:-1])
    if (largest < 1 - WHOLE).any():
        return None
    taken = np.flatnonzero(options >= np.repeat(largest, np.diff(first)))
    _, places = np.unique(np.searchsorted(first, taken, side="right"), return_index=True)
    return (taken[places] - first[:-1]).tolist()


def measure(
    problem: Problem, weights: Weights, picked: Sequence[int], bound: float, sizes: tuple[int, int] = (0, 0)
) -> Solution:
    """An assignment with its cheapest redistributions. Raises Infeasible where a tensor can't be redistributed."""
    pairs = list(zip(problem.groups, picked, strict=True))
    time_s = sum(float(g.time_s[o]) for g, o in pairs)
    state = sum(float(g.state_bytes[o]) for g, o in pairs)
    kept, again_s = sum(float(g.kept_bytes[o]) for g, o in pairs), 0.0
    trees = []
    for tensor in problem.tensors:
        way = cheapest_way(tensor, picked, weights.kept)
        if way is None:
            raise Infeasible("a tensor can't be brought where it is wanted")
        trees.append(way.tree)
        time_s, kept, again_s = time_s + way.time_s, kept + way.kept_bytes, again_s + way.again_s
    objective = time_s + again_s + weights.state * state + weights.kept * kept
    return Solution(tuple(picked), tuple(trees), time_s, state, kept, objective, min(bound, objective), *sizes)


@dataclass(frozen=True)
class Way:
    """How one tensor is brought where it is wanted, and what is kept of it.

    tree     the arcs that are paid, sources first
    time_s   of these
    again_s  of what is gathered again, so that fewer bytes are kept
    """

    tree: tuple[tuple[int, int], ...]
    time_s: float
    kept_bytes: float = 0.0
    again_s: float = 0.0

    def cost(self, byte_s: float) -> float:
        return self.time_s + self.again_s + byte_s * self.kept_bytes


def cheapest_way(tensor: Tensor, picked: Sequence[int], byte_s: float) -> Way | None:
    """The cheapest way of a tensor in an assignment, where a byte kept is worth ``byte_s``; None where there is none.

    What was gathered is gathered again where that costs less than to keep it. The arcs may be others for it.
    """
    root = int(tensor.given[picked[tensor.source]])
    wanted = {int(taken[picked[group]]) for group, taken in tensor.sinks} - {root}
    kept = kept_layouts(tensor, picked)
    each = [[None, *worthwhile(tensor, layout, byte_s)] for layout in sorted(kept & wanted)]
    most = max(2, int(MOST_WAYS ** (1 / max(1, len(each)))))
    choices = itertools.product(*(arcs[:most] for arcs in each))
    found = (way_of(tensor, root, wanted, kept, [arc for arc in arcs if arc is not None]) for arcs in choices)
    return min((way for way in found if way is not None), key=lambda way: way.cost(byte_s), default=None)


def worthwhile(tensor: Tensor, layout: int, byte_s: float) -> list[int]:
    """The gathers into a layout whose second run costs less than the bytes that it saves, the cheapest first."""
    sizes, sources = tensor.kept_bytes, tensor.arcs[:, 0]
    arcs = [a for a in tensor.gathered(layout) if tensor.again_s[a] < byte_s * (sizes[layout] - sizes[sources[a]])]
    return sorted(arcs, key=lambda a: tensor.arc_s[a] + tensor.again_s[a] + byte_s * sizes[sources[a]])


def way_of(tensor: Tensor, root: int, wanted: set[int], kept: set[int], again: Sequence[int]) -> Way | None:
    """The way by these gathers, each of which runs again, and the cheapest arcs beside."""
    sources = {int(tensor.arcs[arc, 1]): int(tensor.arcs[arc, 0]) for arc in again}
    arcs = tensor.arc_prices
    allowed = {(a, b): price for (a, b), price in arcs.items() if sources.get(b, a) == a} if sources else arcs
    tree = cheapest_tree(root, wanted, allowed)
    if tree is None:
        return None
    size = sum(float(tensor.kept_bytes[sources.get(layout, layout)]) for layout in kept)
    return Way(tree, sum(arcs[arc] for arc in tree), size, sum(float(tensor.again_s[arc]) for arc in again))


def kept_layouts(tensor: Tensor, picked: Sequence[int]) -> set[int]:
    """The layouts in which a tensor is kept for the backward, each once whoever keeps it; a view none in that in which
    it is given."""
    there = set() if tensor.stands is None else {int(tensor.stands[picked[tensor.source]])}
    return {int(kept[picked[group]]) for group, kept in tensor.keepers} - {-1} - there
