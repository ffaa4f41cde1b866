"""The operator problems of one search: each solved once for its tensor axis and microbatch, whatever asks for it.

Neither the data axis nor the number of microbatches changes local shapes, so settings with the same tensor axis and
the same rows in a microbatch share their operators' layouts. Beside the fastest, leaner points are solved when the
memory wall asks for them: with a price on bytes of parameters, and on bytes kept for the backward.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from autoplan.mesh import MICROBATCH, Mesh
from autoplan.pricing import Prices, Topology
from autoplan.pricing.prices import layout_bytes
from autoplan.search.account import BlockPrice, price_block
from autoplan.search.candidates import Setting
from autoplan.search.choice import BlockChoice, tensor_mesh
from autoplan.search.decode import block_choices
from autoplan.search.formulate import Prepared, formulate
from autoplan.search.problem import Formulation, Problem, build
from autoplan.search.solve import Infeasible, Solution, Weights, solve

LEANER = ((1.0, 0.0), (1.0, 1.0), (0.1, 0.1))
"""Prices of all bytes of parameters and of all bytes kept, as shares of the fastest point's time."""

Key = tuple[int, int, int]  # tp, rows of a microbatch, dp where operators communicate along it


@dataclass(frozen=True)
class Point:
    """One way to run every block.

    blocks, prices  in the model's order
    gap             proven, relative
    """

    blocks: tuple[BlockChoice, ...]
    prices: tuple[BlockPrice, ...]
    solution: Solution

    @property
    def gap(self) -> float:
        return (self.solution.objective - self.solution.bound) / max(self.solution.objective, 1e-30)


@dataclass(frozen=True)
class Floor:
    """What no point of a tensor axis and microbatch can undercut: seconds of a microbatch, bytes at one time."""

    seconds: float
    working_bytes: float
    boundary_bytes: float


@dataclass
class _Problem:
    form: Formulation
    prices: Prices
    problem: Problem | None = None
    points: list[Point] = field(default_factory=list)


@dataclass
class Operators:
    """The operator problems of one search, kept until it ends.

    split_weights  a tensor axis that is pinned has to be used
    passes         of the optimizer over a parameter's bytes, for the share of the update in a parameter's price
    """

    prepared: Prepared
    topology: Topology
    fuses: bool
    passes: float
    split_weights: bool
    seconds: float = 0.0
    variables: int = 0
    constraints: int = 0
    known: dict[Key, _Problem] = field(default_factory=dict)

    def anew(self, split_weights: bool) -> Operators:
        """The same model's problems, nothing solved yet."""
        return Operators(self.prepared, self.topology, self.fuses, self.passes, split_weights)

    def prices(self, mesh: Mesh) -> Prices:
        """The price list of a mesh without its pipeline axis."""
        return Prices(
            mesh, self.topology, self.fuses, self.prepared.training, mesh.size(MICROBATCH), self.passes
        )

    def entry(self, setting: Setting) -> _Problem:
        communicates = any(s.communicates for s in self.prepared.batch["dp"].strategies.values())
        key = (setting.tp, setting.micro_batch, setting.dp if communicates else 0)
        if key not in self.known:
            prices = self.prices(tensor_mesh(setting.mesh))
            form = formulate(self.prepared, prices.mesh, prices, split_weights=self.split_weights)
            self.known[key] = _Problem(form, prices)
        return self.known[key]

    def floor(self, setting: Setting) -> Floor:
        """Every operator at its quickest, nothing redistributed; the largest result at its smallest."""
        entry = self.entry(setting)
        form, mesh = entry.form, entry.prices.mesh
        seconds, working = 0.0, 0.0
        uses = Counter(s.block for s in form.model.segments)
        for index, operators in enumerate(form.operators):
            segments = uses[index]
            for name, operator in operators.items():
                options, kind = form.options[index, name], operator.node.type
                seconds += segments * min(entry.prices.operator_s(operator, s) for s in options)
                held = min(layout_bytes(kind, s.output(len(kind.shape), mesh), mesh) for s in options)
                working = max(working, 2.0 * held)
        inputs = [block.inputs for index, block in enumerate(form.model.blocks) if uses[index] > 1]
        ways = mesh.size("tp") * mesh.size("dp") * mesh.size(MICROBATCH)
        boundary = max((sum(v.type.bytes for v in values) / ways for values in inputs), default=0.0)
        return Floor(seconds, working, boundary)

    def point(self, setting: Setting, number: int) -> Point | None:
        """The fastest point (0), or one of the leaner ones; None where there is no further one."""
        entry = self.entry(setting)
        if number > (len(LEANER) if setting.tp > 1 else 0):
            return None
        start = time.perf_counter()
        if entry.problem is None:
            entry.problem = build(entry.form)
        while len(entry.points) <= number:
            entry.points.append(self.solve(entry, len(entry.points)))
        self.seconds += time.perf_counter() - start
        return entry.points[number]

    def solve(self, entry: _Problem, number: int) -> Point:
        assert entry.problem is not None
        weights = Weights()
        if number:
            fastest = entry.points[0].solution
            state, kept = LEANER[number - 1]
            weights = Weights(
                state * fastest.time_s / max(fastest.state_bytes, 1.0),
                kept * fastest.time_s / max(fastest.kept_bytes, 1.0),
            )
        try:
            solution = solve(entry.problem, weights)
        except Infeasible:
            if not self.split_weights:
                raise
            entry.form = formulate(self.prepared, entry.prices.mesh, entry.prices, split_weights=False)
            entry.problem = build(entry.form)
            solution = solve(entry.problem, weights)
        self.variables = max(self.variables, solution.variables)
        self.constraints = max(self.constraints, solution.constraints)
        choices = block_choices(entry.form, entry.problem, solution)
        operators: tuple[Mapping, ...] = entry.form.operators
        prices = tuple(
            price_block(block, choice, known, entry.prices)
            for block, choice, known in zip(entry.form.model.blocks, choices, operators, strict=True)
        )
        return Point(choices, prices, solution)


def total_seconds(point: Point, segments: np.ndarray) -> float:
    """Seconds of a microbatch through the whole chain, summed over what is emitted."""
    return float(sum((p.forward_s + p.backward_s) * n for p, n in zip(point.prices, segments, strict=True)))
