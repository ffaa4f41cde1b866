"""The operator problem handed to a solver, as a linear program in arrays (``program``), and its answer read back.

The linear relaxation comes first: without a memory wall it is integral nearly always, and then it is the answer.
Otherwise the same problem is solved again in integers. Only what was chosen is read back; the redistributions and the
objective are computed anew from it, since a solver's own figures are off by its tolerances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.redistribution.steiner_tree import cheapest_tree
from autoplan.search.intra_op.milp import program
from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.solver.engines import Answer, Engine, Infeasible, engine, pick_solver, solver_name
from autoplan.solver.program import Program

__all__ = ["Infeasible", "Solution", "Solver", "Weights", "pick_solver", "solve", "solver_name"]

SCALE = 1e4  # the largest coefficient of the objective; far larger ones cost solvers minutes
WHOLE = 1e-5  # how far from 1 the variable of an option that is taken may be


@dataclass(frozen=True)
class Weights:
    """Seconds that a byte is worth, for parameters' states and for what is kept for the backward."""

    state: float = 0.0
    kept: float = 0.0


FloorOf = Callable[[int, Weights], float]
"""Seconds that no operators of one segment of a block undercut, at prices of bytes."""


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
    variables: int
    constraints: int
    seconds: float


def solve(problem: Problem, weights: Weights = Weights(), time_limit_s: float = 30.0, gap: float = 1e-6) -> Solution:
    """The cheapest assignment. Raises Infeasible where there is none."""
    return Solver(problem).solve(weights, time_limit_s, gap)


class Solver:
    """One problem, solved as often as its bytes are priced anew; the constraints are built once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.program: Program | None = None
        self.engine: Engine | None = None

    def solve(self, weights: Weights, time_limit_s: float = 30.0, gap: float = 1e-6) -> Solution:
        """As the function of that name."""
        start = time.perf_counter()
        if self.decided:
            return measure(self.problem, weights, [0] * len(self.problem.groups), math.inf, (0, 0), start)
        answer = self.run(weights, time_limit_s, gap, integers=False)
        picked, bound = options_of(answer, self.program), answer.bound
        if picked is None:
            answer = self.run(weights, time_limit_s, gap, integers=True)
            picked, bound = options_of(answer, self.program), max(bound, answer.bound)
        if picked is None or self.program is None:
            raise Infeasible(f"the solver found nothing in {time_limit_s} s")
        sizes = (self.program.variables, self.program.constraints)
        return measure(self.problem, weights, picked, bound, sizes, start)

    def bound(self, weights: Weights, time_limit_s: float = 30.0) -> float:
        """What no assignment undercuts: the relaxation's value."""
        if self.decided:
            return self.solve(weights).objective
        return self.run(weights, time_limit_s, 0.0, integers=False).bound

    @property
    def decided(self) -> bool:
        return all(len(group.options) == 1 for group in self.problem.groups)

    def run(self, weights: Weights, time_limit_s: float, gap: float, *, integers: bool) -> Answer:
        """The solver's answer, its costs scaled for it and its bound scaled back."""
        if self.program is None or self.engine is None:
            if not all(group.options for group in self.problem.groups):
                raise Infeasible("a group has no options")
            self.program = program(self.problem)
            self.engine = engine(self.program)
        cost = self.program.cost(weights.state, weights.kept)
        largest = float(cost.max())
        scale = SCALE / largest if largest > 0 else 1.0
        answer = self.engine.run(cost * scale, np.full(self.program.options, integers), time_limit_s, gap)
        return Answer(answer.values, answer.bound / scale)


def options_of(answer: Answer, program: Program | None) -> list[int] | None:
    """The option taken in each group; None where one is fractional, or nothing was found."""
    if answer.values is None or program is None:
        return None
    first = program.first
    options = answer.values[: first[-1]]
    largest = np.maximum.reduceat(options, first[:-1])
    if (largest < 1 - WHOLE).any():
        return None
    taken = np.flatnonzero(options >= np.repeat(largest, np.diff(first)))
    _, places = np.unique(np.searchsorted(first, taken, side="right"), return_index=True)
    return (taken[places] - first[:-1]).tolist()


def measure(
    problem: Problem, weights: Weights, picked: Sequence[int], bound: float, sizes: tuple[int, int], start: float
) -> Solution:
    trees = decode_trees(problem, picked)
    if trees is None:
        raise Infeasible("a tensor can't be brought where it is wanted")
    time_s, state, kept = totals(problem, picked, trees)
    objective = time_s + weights.state * state + weights.kept * kept
    return Solution(
        tuple(picked), trees, time_s, state, kept, objective, min(bound, objective), *sizes,
        time.perf_counter() - start,
    )  # fmt: skip


def decode_trees(problem: Problem, picked: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """The cheapest arcs that bring every tensor where it is wanted; None where one can't be brought there."""
    trees: list[tuple[tuple[int, int], ...]] = []
    for tensor in problem.tensors:
        root = int(tensor.given[picked[tensor.source]])
        wanted = {int(taken[picked[group]]) for group, taken in tensor.sinks} - {root}
        tree = cheapest_tree(root, wanted, prices_of(tensor)) if wanted else ()
        if tree is None:
            return None
        trees.append(tree)
    return tuple(trees)


def totals(
    problem: Problem, picked: Sequence[int], trees: Sequence[Sequence[tuple[int, int]]]
) -> tuple[float, float, float]:
    """(seconds, bytes of parameters, bytes kept) of an assignment."""
    pairs = list(zip(problem.groups, picked, strict=True))
    time_s = sum(float(g.time_s[o]) for g, o in pairs)
    state = sum(float(g.state_bytes[o]) for g, o in pairs)
    kept = sum(float(g.kept_bytes[o]) for g, o in pairs)
    for tensor, tree in zip(problem.tensors, trees, strict=True):
        if tree:
            arcs = prices_of(tensor)
            time_s += sum(arcs[arc] for arc in tree)
        kept += sum(float(tensor.kept_bytes[layout]) for layout in kept_layouts(tensor, picked))
    return time_s, state, kept


def prices_of(tensor: Tensor) -> dict[tuple[int, int], float]:
    """Seconds of each arc, by its ends."""
    return {(a, b): price for (a, b), price in zip(tensor.arcs.tolist(), tensor.arc_s.tolist(), strict=True)}


def kept_layouts(tensor: Tensor, picked: Sequence[int]) -> set[int]:
    """The layouts in which a tensor is kept for the backward, each once whoever keeps it."""
    return {int(kept[picked[group]]) for group, kept in tensor.keepers} - {-1}
