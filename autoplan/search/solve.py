"""The operator problem handed to a solver, and its answer read back.

The linear relaxation comes first: without a memory wall it is integral nearly always, and then it is the answer.
Otherwise the same problem is solved again in integers. Only what was chosen is read back; the redistributions and the
objective are computed anew from it, since a solver's own figures are off by its tolerances.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from autoplan.search.problem import Problem, Tensor
from autoplan.search.tree import cheapest_tree

SCALE = 1e4  # the largest coefficient of the objective; far larger ones cost solvers minutes


class Infeasible(Exception):
    """No assignment satisfies the problem."""


@dataclass(frozen=True)
class Weights:
    """Seconds that a byte is worth, for parameters' states and for what is kept for the backward."""

    state: float = 0.0
    kept: float = 0.0


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


def pick_solver(time_limit_s: float, gap: float) -> pulp.LpSolver:
    """HiGHS where it is installed, else the CBC that PuLP brings."""
    highs = pulp.HiGHS(msg=False, timeLimit=time_limit_s, gapRel=gap, threads=1)
    if highs.available():
        return highs
    return pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit_s, gapRel=gap, threads=1)


def solver_name() -> str:
    return type(pick_solver(1.0, 0.0)).__name__.replace("PULP_", "").replace("_CMD", "")


def solve(problem: Problem, weights: Weights = Weights(), time_limit_s: float = 30.0, gap: float = 1e-6) -> Solution:
    """The cheapest assignment. Raises Infeasible where there is none."""
    return Solver(problem).solve(weights, time_limit_s, gap)


class Solver:
    """One problem, solved as often as its bytes are priced anew; the constraints are built once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model: _Model | None = None

    def solve(self, weights: Weights, time_limit_s: float = 30.0, gap: float = 1e-6) -> Solution:
        """As the function of that name."""
        start = time.perf_counter()
        if all(len(group.options) == 1 for group in self.problem.groups):
            return measure(self.problem, weights, [0] * len(self.problem.groups), math.inf, (0, 0), start)
        if self.model is None:
            self.model = _Model(self.problem)
        self.model.objective(weights)
        relaxed = self.model.run(pick_solver(time_limit_s, gap), integers=False)
        picked = self.model.picked()
        if picked is None:
            self.model.run(pick_solver(time_limit_s, gap), integers=True)
            picked = self.model.picked()
        if picked is None:
            raise Infeasible(f"the solver found nothing in {time_limit_s} s")
        sizes = (self.model.variables, self.model.constraints)
        return measure(self.problem, weights, picked, relaxed, sizes, start)


    def bound(self, weights: Weights, time_limit_s: float = 30.0) -> float:
        """What no assignment undercuts: the relaxation's value."""
        if all(len(group.options) == 1 for group in self.problem.groups):
            return self.solve(weights).objective
        if self.model is None:
            self.model = _Model(self.problem)
        self.model.objective(weights)
        return self.model.run(pick_solver(time_limit_s, 0.0), integers=False)


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
    trees = []
    for tensor in problem.tensors:
        root = int(tensor.given[picked[tensor.source]])
        wanted = {int(taken[picked[group]]) for group, taken in tensor.sinks}
        arcs = {(int(a), int(b)): float(c) for (a, b), c in zip(tensor.arcs, tensor.arc_s, strict=True)}
        tree = cheapest_tree(root, wanted, arcs)
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
        arcs = {(int(a), int(b)): float(c) for (a, b), c in zip(tensor.arcs, tensor.arc_s, strict=True)}
        time_s += sum(arcs[arc] for arc in tree)
        kept += sum(float(tensor.kept_bytes[layout]) for layout in kept_layouts(tensor, picked))
    return time_s, state, kept


def kept_layouts(tensor: Tensor, picked: Sequence[int]) -> set[int]:
    """The layouts in which a tensor is kept for the backward, each once whoever keeps it."""
    return {int(kept[picked[group]]) for group, kept in tensor.keepers} - {-1}


class _Model:
    """The PuLP model of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.lp = pulp.LpProblem("operators", pulp.LpMinimize)
        self.terms: list[tuple[pulp.LpVariable, float, float, float]] = []
        self.count = itertools.count()
        self.scale = 1.0
        self.built = False
        self.x = [self.choose_one(i) for i in range(len(problem.groups))]
        for tensor in problem.tensors:
            self.flow(tensor)
            self.keep(tensor)
        self.variables, self.constraints = next(self.count), len(self.lp.constraints)

    def variable(
        self, time_s: float = 0.0, state: float = 0.0, kept: float = 0.0, upper: float | None = None
    ) -> pulp.LpVariable:
        made = pulp.LpVariable(f"v{next(self.count)}", 0, upper)
        if time_s or state or kept:
            self.terms.append((made, time_s, state, kept))
        return made

    def objective(self, weights: Weights) -> None:
        """Σ x (time + w_state·state + w_act·kept) + Σ y·arc + w_act Σ z·kept, scaled."""
        prices = [(v, t + weights.state * state + weights.kept * kept) for v, t, state, kept in self.terms]
        largest = max((price for _, price in prices), default=0.0)
        self.scale = SCALE / largest if largest > 0 else 1.0
        self.lp.setObjective(pulp.LpAffineExpression([(v, price * self.scale) for v, price in prices if price]))

    def choose_one(self, index: int) -> list[pulp.LpVariable]:
        """Σ_o x[g,o] = 1."""
        group = self.problem.groups[index]
        prices = zip(group.time_s, group.state_bytes, group.kept_bytes, strict=True)
        made = [self.variable(float(t), float(s), float(k), upper=1.0) for t, s, k in prices]
        self.lp += pulp.LpAffineExpression([(v, 1) for v in made]) == 1
        return made

    def flow(self, tensor: Tensor) -> None:
        """The flow from the producer to each consumer, its arcs paid once."""
        sinks = distinct_sinks(tensor)
        prices = [float(p) for p in tensor.arc_s]
        if len(sinks) == 1:
            self.conserve(tensor, sinks[0], [self.variable(p) for p in prices])
            return
        paid = [self.variable(p) for p in prices]
        for sink in sinks:
            flow = [self.variable() for _ in prices]
            self.conserve(tensor, sink, flow)
            self.share(flow, paid)

    def conserve(self, tensor: Tensor, sink: tuple[int, np.ndarray], flow: Sequence[pulp.LpVariable]) -> None:
        """given(t,l) + Σ_{a into l} f[t,c,a] = taken(t,c,l) + Σ_{a from l} f[t,c,a]."""
        group, taken = sink
        sums: list[list[tuple[pulp.LpVariable, int]]] = [[] for _ in tensor.layouts]
        for option, layout in enumerate(tensor.given):
            sums[layout].append((self.x[tensor.source][option], 1))
        for option, layout in enumerate(taken):
            sums[layout].append((self.x[group][option], -1))
        for (source, target), variable in zip(tensor.arcs, flow, strict=True):
            sums[target].append((variable, 1))
            sums[source].append((variable, -1))
        for terms in sums:
            if terms:
                self.lp += combined(terms) == 0

    def share(self, flow: Sequence[pulp.LpVariable], paid: Sequence[pulp.LpVariable]) -> None:
        """f[t,c,a] ≤ y[t,a]."""
        for part, whole in zip(flow, paid, strict=True):
            self.lp += pulp.LpAffineExpression([(part, 1), (whole, -1)]) <= 0

    def keep(self, tensor: Tensor) -> None:
        """z[t,l] ≥ Σ_{o keeps t in l} x[g,o]."""
        for layout in range(len(tensor.layouts)):
            rows = [[self.x[g][o] for o, at in enumerate(kept) if at == layout] for g, kept in tensor.keepers]
            if not any(rows):
                continue
            kept = self.variable(kept=float(tensor.kept_bytes[layout]))
            for row in filter(None, rows):
                self.lp += pulp.LpAffineExpression([(v, 1) for v in row] + [(kept, -1)]) <= 0

    def run(self, solver: pulp.LpSolver, *, integers: bool) -> float:
        """Solves, and gives a lower bound on the objective."""
        if not integers and self.built and isinstance(solver, pulp.HiGHS):
            status = self.again(solver)
        else:
            for row in self.x:
                for variable in row:
                    variable.cat = pulp.LpInteger if integers else pulp.LpContinuous
            status = self.lp.solve(solver)
            self.built = not integers
        if status in (pulp.LpStatusInfeasible, pulp.LpStatusUnbounded):
            raise Infeasible(f"the solver calls it {pulp.LpStatus[status].lower()}")
        value = pulp.value(self.lp.objective)
        return (value or 0.0) / self.scale

    def again(self, solver: pulp.HiGHS) -> int:
        """The relaxation under another objective, from where HiGHS left the last one: nothing is built anew."""
        inside, variables = self.lp.solverModel, self.lp.variables()
        prices = np.array([self.lp.objective.get(variable, 0.0) for variable in variables], dtype=float)
        inside.changeColsCost(len(prices), np.arange(len(prices), dtype=np.int32), prices)
        inside.run()
        status, _ = solver.findSolutionValues(self.lp)
        return int(status)

    def picked(self) -> list[int] | None:
        """The option taken in each group; None where one is fractional."""
        picked = []
        for row in self.x:
            values = [variable.varValue or 0.0 for variable in row]
            best = int(np.argmax(values))
            if values[best] < 1 - 1e-5:
                return None
            picked.append(best)
        return picked


def distinct_sinks(tensor: Tensor) -> list[tuple[int, np.ndarray]]:
    """The consumers without those that take the same as another in every case."""
    found: dict[tuple[int, bytes], tuple[int, np.ndarray]] = {}
    for group, taken in tensor.sinks:
        found.setdefault((group, taken.tobytes()), (group, taken))
    return list(found.values())


def combined(terms: Sequence[tuple[pulp.LpVariable, int]]) -> pulp.LpAffineExpression:
    """The sum, where one variable may stand several times."""
    total: dict[pulp.LpVariable, int] = {}
    for variable, factor in terms:
        total[variable] = total.get(variable, 0) + factor
    return pulp.LpAffineExpression([(v, f) for v, f in total.items() if f])
