"""One operator problem with every answer to it: each found once, whoever asks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoplan.cost import Device
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan, block_choices, priced_plan, with_steps
from autoplan.search.intra_op.milp import HeldBytes, Memory, Weights
from autoplan.search.intra_op.problem import Problem, Seconds, build, operators_s, updated_together, working_bytes
from autoplan.search.intra_op.problem_inputs import OperatorInputs, Options
from autoplan.search.intra_op.shared_decisions import readers
from autoplan.search.intra_op.solve import Solution, Solver
from autoplan.search.intra_op.template import Template, template_of


@dataclass
class SharedTemplate:
    """What the problems of meshes share on which the same divides."""

    options: Options
    drawn: Template | None = None

    def of(self, form: OperatorInputs) -> Template:
        """Drawn for the first of them that is built."""
        self.drawn = self.drawn or template_of(form)
        return self.drawn


class OperatorProblem:
    """The operator problem of one mesh, built when it is first solved, with all its answers.

    tensor  the tensor axis: problems with the same one differ in the rows of a microbatch alone
    points  the best plan at each price of bytes; equal plans are one object
    """

    def __init__(self, form: OperatorInputs, shared: SharedTemplate, tensor: tuple) -> None:
        self.form, self.shared, self.tensor = form, shared, tensor
        self.points: dict[Weights, IntraOpPlan] = {}
        self.seconds: dict[Device, Seconds] = {}
        self.quickest_s: dict[Device, tuple[float, ...]] = {}
        self.alone: dict[int, Solver] = {}
        self.floors: dict[tuple[int, float, tuple[float, ...]], np.ndarray] = {}
        self.plans: dict[tuple[int, ...], IntraOpPlan] = {}
        self.together: dict[int, Problem] = {}
        self.limited: dict[tuple[HeldBytes, int], Solver] = {}

    @property
    def template(self) -> Template:
        return self.shared.of(self.form)

    @cached_property
    def problem(self) -> Problem:
        return build(self.form, self.template, self.seconds_on(self.form.prices.device))

    @property
    def built(self) -> bool:
        return "problem" in self.__dict__

    @cached_property
    def solver(self) -> Solver:
        return Solver(self.problem)

    def updated_together(self, microbatches: int) -> Problem:
        """The problem of a step in which all parameters are updated together; of no microbatches, each by itself."""
        if microbatches and microbatches not in self.together:
            self.together[microbatches] = updated_together(self.problem, self.form, self.template, microbatches)
        return self.together[microbatches] if microbatches else self.problem

    def under_limits(self, held: HeldBytes, microbatches: int) -> Solver:
        """Of ``updated_together``, for limits of what is held."""
        if (held, microbatches) not in self.limited:
            problem = self.updated_together(microbatches)
            self.limited[held, microbatches] = Solver(problem, Memory(held, working_bytes(self.form, problem)))
        return self.limited[held, microbatches]

    def solve(self, weights: Weights) -> IntraOpPlan:
        """The best plan at these prices of bytes. Raises Infeasible."""
        if weights not in self.points:
            self.points[weights] = self.plan(self.solver.solve(weights))
        return self.points[weights]

    def taken(self, solution: Solution) -> IntraOpPlan:
        """The plan of an answer under a limit."""
        if solution.options not in self.plans:
            self.plans[solution.options] = self.plan(solution)
        return self.plans[solution.options]

    def plan(self, solution: Solution) -> IntraOpPlan:
        """What an answer says of how every block runs; the same object where that is known."""
        choices = block_choices(self.form, self.problem, solution)
        known = list(self.points.values())
        alike = (plan for plan in known if plan.blocks == choices)
        return next(alike, None) or priced_plan(self.form, choices, solution, known)

    def resized(self, point: IntraOpPlan) -> IntraOpPlan | None:
        """A plan for another microbatch priced for this one; None where its splits don't divide here."""
        options = {key: set(found) for key, found in self.form.options.items()}
        for index, block in enumerate(point.blocks):
            if any(strategy not in options[index, name] for name, strategy in block.strategies):
                return None
        each = zip(self.form.model.blocks, point.blocks, self.form.operators, strict=True)
        choices = [with_steps(block, choice, operators, self.form.prices) for block, choice, operators in each]
        found = tuple(choice for choice in choices if choice is not None)
        return priced_plan(self.form, found, point.solution) if len(found) == len(choices) else None

    def allows(self, problem: Problem, solution: Solution) -> bool:
        """Whether an answer to a problem in which less is asked does what is asked here."""
        allowed = {decision.key: decision.options for decision in self.template.decisions}
        pairs = zip(problem.groups, solution.options, strict=True)
        if not all(group.options[option] in allowed[group.key] for group, option in pairs):
            return False
        values = {(value.block, value.name): self.template.ways[value.ways] for value in self.template.values}
        for tensor, tree in zip(problem.tensors, solution.trees, strict=True):
            ways = values[tensor.block, tensor.name]
            arcs = {(ways.layouts[a], ways.layouts[b]) for a, b in ways.arcs.tolist()} if tree else set()
            if any((tensor.layouts[a], tensor.layouts[b]) not in arcs for a, b in tree):
                return False
        return True

    def floor(self, block: int, state: float, kept: np.ndarray) -> np.ndarray:
        """As ``solve.FloorOf``: by the relaxation of the block's part of the problem."""
        key = (block, state, tuple(kept.tolist()))
        if key not in self.floors:
            if block not in self.alone:
                self.alone[block] = Solver(self.of_block(block))
            self.floors[key] = self.alone[block].bounds(state, kept) / self.uses[block]
        return self.floors[key]

    def of_block(self, block: int) -> Problem:
        each = self.uses[block] / readers(self.form.model, block)
        stored = (d for d in self.template.decisions if d.stored is not None)
        return self.problem.of_block(block, {d.key: min(1.0, each / max(d.count, 1)) for d in stored})

    @property
    def uses(self) -> Counter[int]:
        """Segments of each block."""
        return Counter(segment.block for segment in self.form.model.segments)

    def seconds_on(self, device: Device) -> Seconds:
        """Of every operator, each of its options on one kind of device."""
        if device not in self.seconds:
            self.seconds[device] = operators_s(self.form, self.form.prices.on(device))
        return self.seconds[device]

    def floors_s(self, device: Device) -> tuple[float, ...]:
        """Seconds of a microbatch of all segments of each block on one kind of device, every operator at its quickest
        and nothing redistributed."""
        if device not in self.quickest_s:
            uses, seconds = self.uses, self.seconds_on(device)
            self.quickest_s[device] = tuple(
                sum(uses[index] * float(seconds[index, name].min()) for name in operators)
                for index, operators in enumerate(self.form.operators)
            )
        return self.quickest_s[device]
