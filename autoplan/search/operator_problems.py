"""The operator problems of one search: each solved once for its tensor axis and microbatch, whatever asks for it.

Neither the data axis nor the number of microbatches changes local shapes, so candidates with the same tensor axis and
the same rows in a microbatch share their operators' layouts. Beside the fastest, leaner plans are solved when the
memory limit asks for them: with a price on bytes of parameters, and on bytes kept for the backward (``pareto``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autoplan.cost import Device, Prices, Topology
from autoplan.cost.interleaved import splits
from autoplan.cost.prices import AxisMove
from autoplan.cost.prices import Group as Links
from autoplan.errors import ParallelismError
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.mesh import EXPERT, MICROBATCH, TENSOR, Mesh
from autoplan.option_values import AUTO, SHARED
from autoplan.options import Parallelism
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.milp import HeldBytes, Weights
from autoplan.search.intra_op.operator_options import SplitSizes, divisibility, formulate, split_sizes
from autoplan.search.intra_op.operator_problem import OperatorProblem, SharedTemplate
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.problem_inputs import OperatorInputs, Prepared
from autoplan.search.intra_op.solve import FloorOf, Infeasible, OutOfTime, Solution, Solver
from autoplan.search.intra_op.template import Decision
from autoplan.search.space.axis_systems import systems_of
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.sizes import Sizes, sizes_of


def uses_tensor_axis(parallelism: Parallelism) -> bool:
    """Whether a tensor axis is asked for, so that one that splits nothing won't do."""
    return (parallelism.tp or 1) > 1


@dataclass(frozen=True)
class Overlaps:
    """``Prices.chunks`` and ``Prices.exchanges``."""

    chunks: tuple[int, ...] = (1,)
    exchanges: tuple[int | str, ...] = (1,)

    @staticmethod
    def of(parallelism: Parallelism) -> Overlaps:
        """Those tried under what is pinned."""
        chunks, how = parallelism.tp_overlap, parallelism.ep_overlap
        tried = (chunks,) if isinstance(chunks, int) else TRIED if chunks == AUTO else (1,)
        exchanges = (*TRIED[:3], SHARED) if how == AUTO else (1,) if how is None else (how,)
        return Overlaps(tried, exchanges)


TRIED = (1, 2, 4, 8, 16)  # chunks, each a power of two, as rows are
Systems = tuple[str, str, tuple[str, ...]]
# sizes of ep, cp and the factors of tp, the systems on cp and tp and axes beside ep that split experts, rows of a
# microbatch, dp where operators communicate along it, whether the schedule splits the backward
Key = tuple[tuple[int, ...], Systems, int, int, bool]


@dataclass
class OperatorProblems:
    """The operator problems of one search, kept until it ends.

    split_weights  a tensor axis that is pinned has to be used
    sequence       whether sequence parallelism is pinned, and to what
    stored         bytes stored for each byte of parameter used (``Prices.stored``)
    reduced        bytes of its gradient that are summed over the data axis (``Prices.reduced``)
    passes         of the optimizer over a parameter's bytes, for the share of the update in a parameter's price
    quick          one problem is solved for each tensor axis; its fastest operators are priced for other microbatches
    slots          of schedules, by their sizes and a stage's devices (``floors.slots``)
    wider          the same problems where less is asked: what is best there, and does what is asked here, is best here
    overlaps       how collectives may run beside what is computed
    unsolved       the axes of those problems for which the solver found nothing in time
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
    known: dict[Key, OperatorProblem] = field(default_factory=dict)
    wider: OperatorProblems | None = None
    templates: dict[tuple, SharedTemplate] = field(default_factory=dict)
    axis_moves: dict[AxisMove, float | None] = field(default_factory=dict)
    collectives: dict[Links, float] = field(default_factory=dict)
    messages: dict[tuple[float, int, int, int], float] = field(default_factory=dict)
    listed: dict[tuple[Mesh, bool, Overlaps], Prices] = field(default_factory=dict)
    slots: dict[tuple[str, int, int, int, int], float] = field(default_factory=dict)
    overlaps: Overlaps = Overlaps()
    unsolved: dict[Key, str] = field(default_factory=dict)

    @cached_property
    def split_sizes(self) -> SplitSizes:
        return split_sizes(self.prepared)

    @cached_property
    def sizes(self) -> Sizes:
        """Of the whole model."""
        return sizes_of(self.prepared.model, self.prepared.operators)

    def pinned_to(self, parallelism: Parallelism, quick: bool = False) -> OperatorProblems:
        """The problems under other pinned fields: these, where the fields say the same, else with nothing solved."""
        split, sequence = uses_tensor_axis(parallelism), parallelism.sequence_parallel
        overlaps = Overlaps.of(parallelism)
        if (split, sequence, overlaps) == (self.split_weights, self.sequence, self.overlaps):
            return self
        asks_more = (split or not self.split_weights) and self.sequence in (None, sequence)
        asks_more = asks_more and overlaps == self.overlaps
        return OperatorProblems(
            self.prepared, self.topology, self.fuses, self.passes, split, sequence, self.stored, quick,
            reduced=self.reduced, wider=self if asks_more and not self.quick else None, templates=self.templates,
            axis_moves=self.axis_moves, collectives=self.collectives, messages=self.messages, listed=self.listed,
            slots=self.slots, overlaps=overlaps,
        )  # fmt: skip

    def prices(self, mesh: Mesh, schedule: str = "") -> Prices:
        """The price list of a mesh without its pipeline axis; nothing hides under what a schedule computes apart."""
        key = (mesh, not splits(schedule), self.overlaps)
        if key not in self.listed:
            self.listed[key] = Prices(
                mesh, self.topology, self.fuses, self.prepared.training, mesh.size(MICROBATCH), self.passes,
                self.stored, self.reduced, direct=len(mesh.operator_axes) > 1, hides=key[1], axis_moves=self.axis_moves,
                collectives=self.collectives, messages=self.messages, **vars(self.overlaps),
            )  # fmt: skip
        return self.listed[key]

    def form(
        self, prices: Prices, split_weights: bool, systems: Systems = ("", "", ()), strict: bool = True
    ) -> tuple[OperatorInputs, SharedTemplate]:
        """What the problem of a mesh is made of, and what it shares with those of meshes on which the same divides.

        systems  how attention is split over the context's axis, the system on the tensor axes, and axes beside ep over
                 which experts are split
        """
        mesh, (cp_attention, tensor_system, folds) = prices.mesh, systems
        sizes = tuple(mesh.size(axis) for axis in mesh.operator_axes)
        tensor = sizes if len(sizes) > 1 else (sizes[0] > 1,)  # which arcs are alike depends on several axes' sizes
        over = tuple(axis for axis in mesh.operator_axes if axis in TENSOR and mesh.size(axis) > 1)
        divides = divisibility(self.split_sizes, mesh)
        asked = (systems, split_weights, self.sequence, strict)
        key = (tensor, mesh.operator_axes, *asked, mesh if divides is None else divides)
        known = self.templates.get(key)
        form = formulate(
            self.prepared, mesh, prices, split_weights=split_weights, sequence=self.sequence,
            system=systems_of(
                cp_attention, mesh.size(EXPERT), tensor_system, over if split_weights else (), over, folds
            ),
            options=None if known is None else known.options, strict=strict,
        )  # fmt: skip
        return form, self.templates.setdefault(key, SharedTemplate(form.options))

    def entry(self, candidate: Candidate) -> OperatorProblem:
        key = self.key(candidate)
        if key not in self.known:
            self.known[key] = self.made(candidate, self.split_weights)
        return self.known[key]

    def made(self, candidate: Candidate, split_weights: bool, strict: bool = True) -> OperatorProblem:
        key, prices = self.key(candidate), self.prices(tensor_mesh(candidate.mesh), candidate.schedule)
        systems = (candidate.cp_attention, candidate.tensor_system, candidate.folds)
        form, shared = self.form(prices, split_weights, systems, strict)
        return OperatorProblem(form, shared, (*key[:2], *key[3:]))

    def key(self, candidate: Candidate) -> Key:
        systems = (candidate.cp_attention, candidate.tensor_system, candidate.folds)
        along = candidate.dp if self.communicates else 0
        return (candidate.operator_sizes, systems, candidate.micro_batch, along, splits(candidate.schedule))

    @cached_property
    def communicates(self) -> bool:
        """Whether some operator does so along the data axis."""
        return any(s.communicates for s in self.prepared.batch["dp"].strategies.values())

    def floor_s(self, candidate: Candidate) -> float:
        """Seconds of a microbatch through the chain, every operator at its quickest and nothing redistributed."""
        return sum(self.floors_s(candidate, self.topology.device))

    def floors_s(self, candidate: Candidate, device: Device) -> tuple[float, ...]:
        """The same of all segments of each block, on one kind of device."""
        return self.entry(candidate).floors_s(device)

    def fastest(self, candidate: Candidate) -> IntraOpPlan:
        """The operators of the least time, whatever they hold."""
        return self.priced(candidate, Weights())

    def priced(self, candidate: Candidate, weights: Weights) -> IntraOpPlan:
        """The best operators at these prices of bytes; the same object where an answer is one that is known."""
        entry = self.entry(candidate)
        if weights not in entry.points:
            start = time.perf_counter()
            known = self.resized(entry) if self.quick and weights == Weights() and not entry.points else None
            known = known or self.from_wider(candidate, weights)
            if known is None:
                self.solve(candidate, weights)
                self.seconds += time.perf_counter() - start
            else:
                entry.points[weights] = known
        return self.entry(candidate).points[weights]

    def from_wider(self, candidate: Candidate, weights: Weights) -> IntraOpPlan | None:
        """The point that is known where less is asked, if it does what is asked here."""
        known = self.wider.known.get(self.key(candidate)) if self.wider is not None else None
        point = known.points.get(weights) if known is not None else None
        if known is None or point is None or not known.built:
            return None
        return point if self.entry(candidate).allows(known.problem, point.solution) else None

    def resized(self, entry: OperatorProblem) -> IntraOpPlan | None:
        """The operators that are the fastest for another microbatch, priced for this one, where that can be."""
        for known in self.known.values():
            point = known.points.get(Weights()) if known.tensor == entry.tensor and known.built else None
            found = entry.resized(point) if point is not None else None
            if found is not None:
                return found
        return None

    def solve(self, candidate: Candidate, weights: Weights) -> None:
        entry, axes = self.entry(candidate), candidate.axes_text
        # what is pinned holds inside blocks and of every weight, as far as the model's sizes allow
        looser = [(self.split_weights, False)] if self.sequence is not None else []
        looser += [(False, False)] if self.split_weights else []
        while True:
            try:
                solution = entry.solve(weights).solution
                break
            except OutOfTime as error:  # whether what is pinned can hold isn't known: it isn't loosened
                self.unsolved[self.key(candidate)] = axes
                raise ParallelismError(axes, str(error), "pin other sizes, or fewer tensor axes") from None
            except Infeasible:
                if candidate.tensor_system:
                    raise ParallelismError(
                        axes, "the model's sizes leave no way to lie on these axes",
                        "pin other sizes, or leave tensor_system out",
                    ) from None  # fmt: skip
                if not looser:
                    raise ParallelismError(
                        axes, "what is constrained leaves the operators no way to lie on these axes together",
                        "leave out a constraint, or pin other sizes",
                    ) from None  # fmt: skip
                entry = self.known[self.key(candidate)] = self.made(candidate, *looser.pop(0))
        self.variables = max(self.variables, solution.variables)
        self.constraints = max(self.constraints, solution.constraints)

    def solved_anew(self, candidate: Candidate) -> OperatorProblems:
        """The same problems but this candidate's, to be solved for itself."""
        own = self.entry(candidate)
        known = {key: entry for key, entry in self.known.items() if entry is not own}
        return replace(self, quick=False, known=known)

    def floor(self, candidate: Candidate) -> FloorOf:
        """What no operators of one segment of a block undercut, at prices of bytes."""
        self.fastest(candidate)  # which may find that weights can't be split, and put another problem in its place
        entry = self.entry(candidate)

        def floor_of(block: int, state: float, kept: np.ndarray) -> np.ndarray:
            start = time.perf_counter()
            found_s = entry.floor(block, state, kept)
            self.seconds += time.perf_counter() - start
            return found_s

        return floor_of

    def joint(self, candidate: Candidate, held: HeldBytes, together: int = 0) -> Solver:
        """A candidate's problem under limits of what is held.

        together  microbatches of a step in which all parameters are updated together; 0: each by itself
        """
        return self.entry(candidate).under_limits(held, together)

    def problem(self, candidate: Candidate, together: int = 0) -> Problem:
        """The same under no limit."""
        return self.entry(candidate).updated_together(together)

    def decisions(self, candidate: Candidate) -> tuple[Decision, ...]:
        """Of a candidate's problem, before any was left out."""
        return self.entry(candidate).template.decisions

    def taken(self, candidate: Candidate, solution: Solution) -> IntraOpPlan:
        """What an answer to a candidate's problem says of how every block runs; the same object where that is known."""
        return self.entry(candidate).taken(solution)
