"""The operator problems of one search: each solved once for its tensor axis and microbatch, whatever asks for it.

Neither the data axis nor the number of microbatches changes local shapes, so settings with the same tensor axis and
the same rows in a microbatch share their operators' layouts. Beside the fastest, leaner points are solved when the
memory wall asks for them: with a price on bytes of parameters, and on bytes kept for the backward (``columns``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoplan.cost import Device, Prices, Topology
from autoplan.cost.prices import Group as Links
from autoplan.cost.prices import Line
from autoplan.errors import ParallelismError
from autoplan.ir.choice import BlockChoice, tensor_mesh
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.options import Parallelism
from autoplan.search.block_cost.account import BlockPrice, price_block
from autoplan.search.intra_op.classes import readers
from autoplan.search.intra_op.decode import block_choices, with_steps
from autoplan.search.intra_op.inputs import Formulation
from autoplan.search.intra_op.memory_constrained import HeldBytes, Joint, working_bytes
from autoplan.search.intra_op.options import Options, Prepared, SplitSizes, divisibility, formulate, split_sizes
from autoplan.search.intra_op.plan import Point
from autoplan.search.intra_op.problem import Problem, Seconds, alone, build, operators_s
from autoplan.search.intra_op.pruning import pruned_if_large
from autoplan.search.intra_op.solve import FloorOf, Infeasible, Solution, Solver, Weights
from autoplan.search.intra_op.template import Decision, Outline, outline_of
from autoplan.search.space.candidates import Setting
from autoplan.search.space.context_parallel import LAYOUTS
from autoplan.search.space.heterogeneous import kinds_of
from autoplan.search.space.sizes import Sizes, sizes_of


def uses_tensor_axis(parallelism: Parallelism) -> bool:
    """Whether a tensor axis is asked for, so that one that splits nothing won't do."""
    return (parallelism.tp or 1) > 1


# factors of tp, the named system on them, rows of a microbatch, dp where operators communicate along it
Key = tuple[tuple[int, ...], str, int, int]


def setting_text(mesh: Mesh) -> str:
    return "x".join(str(mesh.size(axis)) for axis in mesh.tensor_axes)


@dataclass
class Shared:
    """What the problems of meshes share on which the same divides."""

    options: Options
    drawn: Outline | None = None

    def outline(self, form: Formulation) -> Outline:
        """Drawn for the first of them that is built."""
        self.drawn = self.drawn or outline_of(form)
        return self.drawn


@dataclass
class _Problem:
    form: Formulation
    prices: Prices
    tensor: tuple  # the key without the rows
    shared: Shared
    problem: Problem | None = None
    solver: Solver | None = None
    seconds: dict[Device, Seconds] = field(default_factory=dict)
    floor_s: dict[Device, tuple[float, ...]] = field(default_factory=dict)
    alone: dict[int, Solver] = field(default_factory=dict)
    joints: dict[tuple[int, HeldBytes], Joint] = field(default_factory=dict)
    floors: dict[tuple[int, Weights], float] = field(default_factory=dict)
    points: dict[Weights, Point] = field(default_factory=dict)
    taken: dict[tuple[int, ...], Point] = field(default_factory=dict)

    def seconds_on(self, device: Device) -> Seconds:
        """Of every operator, each of its options on one kind of device."""
        if device not in self.seconds:
            self.seconds[device] = operators_s(self.form, self.prices.on(device))
        return self.seconds[device]

    def uses(self, block: int) -> int:
        return sum(segment.block == block for segment in self.form.model.segments)

    def alone_of(self, block: int) -> Problem:
        assert self.problem is not None
        stored = (d for d in self.shared.outline(self.form).decisions if d.stored is not None)
        each = self.uses(block) / readers(self.form.model, block)
        return alone(self.problem, block, {d.key: min(1.0, each / max(d.count, 1)) for d in stored})

    def build(self) -> Problem:
        return pruned_if_large(build(self.form, self.shared.outline(self.form), self.seconds_on(self.prices.device)))


@dataclass
class Operators:
    """The operator problems of one search, kept until it ends.

    split_weights  a tensor axis that is pinned has to be used
    sequence       whether sequence parallelism is pinned, and to what
    stored         bytes stored for each byte of parameter used (``Prices.stored``)
    reduced        bytes of its gradient that are summed over the data axis (``Prices.reduced``)
    passes         of the optimizer over a parameter's bytes, for the share of the update in a parameter's price
    quick          one problem is solved for each tensor axis; its fastest operators are priced for other microbatches
    wider          the same problems where less is asked: what is best there, and does what is asked here, is best here
    """

    prepared: Prepared
    topology: Topology
    fuses: bool
    passes: float
    split_weights: bool
    sequence: bool | None = None
    stored: float = 1.0
    quick: bool = False
    reduced: float | None = None
    seconds: float = 0.0
    variables: int = 0
    constraints: int = 0
    known: dict[Key, _Problem] = field(default_factory=dict)
    wider: Operators | None = None
    outlined: dict[tuple, Shared] = field(default_factory=dict)
    lines: dict[Line, float | None] = field(default_factory=dict)
    collectives: dict[Links, float] = field(default_factory=dict)
    messages: dict[tuple[float, int, int, int], float] = field(default_factory=dict)
    listed: dict[Mesh, Prices] = field(default_factory=dict)

    @cached_property
    def split_sizes(self) -> SplitSizes:
        return split_sizes(self.prepared)

    @cached_property
    def sizes(self) -> Sizes:
        """Of the whole model."""
        return sizes_of(self.prepared.model, self.prepared.operators)

    def pinned_to(self, parallelism: Parallelism) -> Operators:
        """The problems under other pinned fields: these, where the fields say the same, else with nothing solved."""
        split, sequence = uses_tensor_axis(parallelism), parallelism.sequence_parallel
        if (split, sequence) == (self.split_weights, self.sequence):
            return self
        asks_more = (split or not self.split_weights) and self.sequence in (None, sequence)
        return Operators(
            self.prepared, self.topology, self.fuses, self.passes, split, sequence, self.stored,
            reduced=self.reduced, wider=self if asks_more and not self.quick else None, outlined=self.outlined,
            lines=self.lines, collectives=self.collectives, messages=self.messages, listed=self.listed,
        )  # fmt: skip

    def on(self, device: Device) -> Operators:
        """The same problems were all devices of one kind, with nothing solved."""
        return replace(
            self, topology=replace(self.topology, device=device, groups=()), known={}, lines={}, listed={}, wider=None
        )

    def prices(self, mesh: Mesh) -> Prices:
        """The price list of a mesh without its pipeline axis."""
        if mesh not in self.listed:
            self.listed[mesh] = Prices(
                mesh, self.topology, self.fuses, self.prepared.training, mesh.size(MICROBATCH), self.passes,
                self.stored, self.reduced, direct=len(mesh.tensor_axes) > 1, lines=self.lines,
                collectives=self.collectives, messages=self.messages,
            )  # fmt: skip
        return self.listed[mesh]

    def form(self, prices: Prices, split_weights: bool, system: str = "") -> tuple[Formulation, Shared]:
        """What the problem of a mesh is made of, and what it shares with those of meshes on which the same divides."""
        mesh = prices.mesh
        sizes = tuple(mesh.size(axis) for axis in mesh.tensor_axes)
        tensor = sizes if len(sizes) > 1 else (sizes[0] > 1,)  # which arcs are alike depends on several axes' sizes
        divides = divisibility(self.split_sizes, mesh)
        key = (tensor, system, split_weights, self.sequence, mesh if divides is None else divides)
        known = self.outlined.get(key)
        form = formulate(
            self.prepared, mesh, prices, split_weights=split_weights, sequence=self.sequence,
            system=LAYOUTS.get(system), options=None if known is None else known.options,
        )  # fmt: skip
        return form, self.outlined.setdefault(key, Shared(form.options))

    def entry(self, setting: Setting) -> _Problem:
        key = self.key(setting)
        if key not in self.known:
            prices = self.prices(tensor_mesh(setting.mesh))
            form, shared = self.form(prices, self.split_weights, setting.tensor_system)
            self.known[key] = _Problem(form, prices, (*key[:2], key[-1]), shared)
        return self.known[key]

    def key(self, setting: Setting) -> Key:
        return (setting.factors, setting.tensor_system, setting.micro_batch, setting.dp if self.communicates else 0)

    @cached_property
    def communicates(self) -> bool:
        """Whether some operator does so along the data axis."""
        return any(s.communicates for s in self.prepared.batch["dp"].strategies.values())

    def floor_s(self, setting: Setting) -> float:
        """Seconds of a microbatch through the chain, every operator at its quickest and nothing redistributed."""
        return sum(self.floors_s(setting, self.topology.device))

    def floors_s(self, setting: Setting, device: Device) -> tuple[float, ...]:
        """The same of all segments of each block, on one kind of device."""
        entry = self.entry(setting)
        if device not in entry.floor_s:
            form, uses = entry.form, Counter(s.block for s in entry.form.model.segments)
            seconds = entry.seconds_on(device)
            entry.floor_s[device] = tuple(
                sum(uses[index] * float(seconds[index, name].min()) for name in operators)
                for index, operators in enumerate(form.operators)
            )
        return entry.floor_s[device]

    def fastest(self, setting: Setting) -> Point:
        """The operators of the least time, whatever they hold."""
        return self.priced(setting, Weights())

    def priced(self, setting: Setting, weights: Weights) -> Point:
        """The best operators at these prices of bytes; the same object where an answer is one that is known."""
        entry = self.entry(setting)
        resized = self.resized(entry) if self.quick and weights == Weights() and not entry.points else None
        if resized is not None:
            entry.points[weights] = resized
        if weights not in entry.points and (point := self.from_wider(setting, weights)) is not None:
            entry.points[weights] = point
        if weights not in entry.points:
            start = time.perf_counter()
            if entry.problem is None:
                entry.problem = entry.build()
            point = self.solve(entry, weights)
            alike = (known for known in entry.points.values() if known.blocks == point.blocks)
            entry.points[weights] = next(alike, point)
            self.seconds += time.perf_counter() - start
        return entry.points[weights]

    def from_wider(self, setting: Setting, weights: Weights) -> Point | None:
        """The point that is known where less is asked, if it does what is asked here."""
        entry, known = self.entry(setting), self.wider.known.get(self.key(setting)) if self.wider is not None else None
        point = known.points.get(weights) if known is not None else None
        if known is None or point is None or known.problem is None:
            return None
        allowed = {decision.key: decision.options for decision in entry.shared.outline(entry.form).decisions}
        pairs = zip(known.problem.groups, point.solution.options, strict=True)
        return point if all(group.options[option] in allowed[group.key] for group, option in pairs) else None

    def solved_anew(self, setting: Setting) -> Operators:
        """The same problems but this setting's, to be solved for itself."""
        own = self.entry(setting)
        known = {key: entry for key, entry in self.known.items() if entry is not own}
        return replace(self, quick=False, known=known)

    def resized(self, entry: _Problem) -> Point | None:
        """The operators that are the fastest for another microbatch, priced for this one: None where there are none,
        or where their splits don't divide here."""
        options = {key: set(found) for key, found in entry.form.options.items()}
        for known in self.known.values():
            point = known.points.get(Weights()) if known.tensor == entry.tensor else None
            chosen = enumerate(point.blocks) if point is not None and known.problem is not None else ()
            if point is not None and known.problem is not None and all(
                strategy in options[index, name] for index, block in chosen for name, strategy in block.strategies
            ):
                blocks = self.prepared.model.blocks
                choices = [with_steps(b, c, entry.prices) for b, c in zip(blocks, point.blocks, strict=True)]
                if None not in choices:
                    return self.point(entry, tuple(c for c in choices if c is not None), point.solution)
        return None

    def floor(self, setting: Setting) -> FloorOf:
        """What no operators of one segment of a block undercut, at prices of bytes."""
        self.fastest(setting)  # which may find that weights can't be split, and build the problem anew
        entry = self.built(setting)

        def floor_of(block: int, weights: Weights) -> float:
            if (block, weights) not in entry.floors:
                start = time.perf_counter()
                entry.alone[block] = entry.alone.get(block) or Solver(entry.alone_of(block))
                entry.floors[block, weights] = entry.alone[block].bound(weights) / entry.uses(block)
                self.seconds += time.perf_counter() - start
            return entry.floors[block, weights]

        return floor_of

    def built(self, setting: Setting) -> _Problem:
        entry = self.entry(setting)
        entry.problem = entry.problem or entry.build()
        return entry

    def joint(self, setting: Setting, held: HeldBytes, problem: Problem) -> Joint:
        """A problem of a setting under limits of bytes."""
        entry = self.entry(setting)
        if (id(problem), held) not in entry.joints:
            entry.joints[id(problem), held] = Joint(problem, working_bytes(entry.form, problem), held)
        return entry.joints[id(problem), held]

    def problem(self, setting: Setting) -> Problem:
        problem = self.built(setting).problem
        assert problem is not None
        return problem

    def decisions(self, setting: Setting) -> tuple[Decision, ...]:
        """Of a setting's problem, before any was left out."""
        entry = self.entry(setting)
        return entry.shared.outline(entry.form).decisions

    def taken(self, setting: Setting, solution: Solution) -> Point:
        """What an answer to a setting's problem says of how every block runs; the same object where that is known."""
        entry = self.entry(setting)
        if solution.options not in entry.taken:
            choices = block_choices(entry.form, self.problem(setting), solution)
            alike = (known for known in entry.points.values() if known.blocks == choices)
            entry.taken[solution.options] = next(alike, None) or self.point(entry, choices, solution)
        return entry.taken[solution.options]

    def solver(self, entry: _Problem) -> Solver:
        assert entry.problem is not None
        entry.solver = entry.solver or Solver(entry.problem)
        return entry.solver

    def solve(self, entry: _Problem, weights: Weights) -> Point:
        try:
            solution = self.solver(entry).solve(weights)
        except Infeasible:
            if entry.form.system is not None:
                raise ParallelismError(
                    f"tensor={setting_text(entry.prices.mesh)}", "the model's sizes leave no way to lie on these axes",
                    "pin other factors, or leave tensor_system out",
                ) from None  # fmt: skip
            solution = self.without_split_weights(entry, weights)
        assert entry.problem is not None
        self.variables = max(self.variables, solution.variables)
        self.constraints = max(self.constraints, solution.constraints)
        return self.point(entry, block_choices(entry.form, entry.problem, solution), solution)

    def without_split_weights(self, entry: _Problem, weights: Weights) -> Solution:
        """The answer where no operator has to split a weight; ParallelismError where there is none either."""
        try:
            if not self.split_weights:
                raise Infeasible("no weight has to be split as it is")
            entry.form, entry.shared = self.form(entry.prices, False)
            entry.seconds, entry.problem, entry.solver = {}, None, None
            entry.problem = entry.build()
            return self.solver(entry).solve(weights)
        except Infeasible:
            raise ParallelismError(
                f"tensor={setting_text(entry.prices.mesh)}",
                "what is constrained leaves the operators no way to lie on these axes together",
                "leave out a constraint, or pin other factors",
            ) from None

    def point(self, entry: _Problem, choices: tuple[BlockChoice, ...], solution: Solution) -> Point:
        operators: tuple[Mapping, ...] = entry.form.operators

        def priced(prices: Prices) -> tuple[BlockPrice, ...]:
            return tuple(
                price_block(block, choice, known, prices)
                for block, choice, known in zip(entry.form.model.blocks, choices, operators, strict=True)
            )

        kinds = tuple((device, priced(entry.prices.on(device))) for device in kinds_of(self.topology))
        return Point(choices, priced(entry.prices), solution, kinds)
