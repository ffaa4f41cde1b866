"""Builds a candidate's stage model, before its chain of segments is cut into stages.

Beside it two variants of its operator problem: all parameters updated as one, and under a memory limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoplan.cost import Device
from autoplan.cost.gathered_optimizer import WholeCost, whole_cost
from autoplan.cost.interleaved import SENDING, InterleavedSchedule, is_interleaved
from autoplan.cost.step import (
    in_one_pass,
    looks_at_all,
    optimizer_passes,
    optimizer_states,
    receives_ahead,
    states_beyond,
    straggling,
)
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.choice import tensor_mesh
from autoplan.options import Inference, Training
from autoplan.search.inter_op.chain import Chain, chain_of, held_by
from autoplan.search.inter_op.parameter_shares import data_axis, parameter_share, with_shards
from autoplan.search.inter_op.rank_memory import HeldParameters
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.milp import HeldBytes
from autoplan.search.intra_op.solve import Solver
from autoplan.search.operator_problems import Key, OperatorProblems
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.heterogeneous import devices_of, headroom_bytes

MATTERS = 0.05  # of a step, that updating parameters together can save at most where it isn't asked for


@dataclass(frozen=True)
class UpdatedTogether:
    """The operator problem with what parameters cost once a step as if it were done for all of them together.

    The problem prices the sum of each parameter's gradients over the tensor axes as a collective of its own, its update
    as a kernel of its own (``Prices.stored_s``). A plan has one collective for all of a stage. Where layers are many or
    large the difference is nothing; in a tiny model it decides which operators are the fastest. There the problem is
    solved with bytes alone counted, too: no plan undercuts that, and the better of the two answers is taken, each at
    its price. One has about no sums, the other as many as are worth it once there is one.

    fastest  by it
    least_s  of a microbatch
    apart_s  of a microbatch, by which it differs at most from one that has each updated by itself
    """

    fastest: IntraOpPlan
    least_s: float
    apart_s: float


@dataclass
class CandidateCosts:
    """Lays candidates out along the chain; keeps what it found until the search ends.

    schedules  actions of schedules that give a rank several stages, or split the backward
    chains     by what of a candidate changes the chain, whether gradients come late, operators and device
    held       parameters of each segment, by the operators
    laid       stage models, by candidate and operators
    whole      of each device, what an optimizer that looks at whole matrices takes beside
    others     problems with all updates together, by problem and microbatches; None where that doesn't matter
    """

    operators: OperatorProblems
    training: Training | Inference
    schedules: dict[tuple[str, int, int, int, bool], InterleavedSchedule] = field(default_factory=dict)
    chains: dict[tuple[Candidate, bool, IntraOpPlan, Device], Chain] = field(default_factory=dict)
    held: dict[IntraOpPlan, tuple[HeldParameters, HeldParameters]] = field(default_factory=dict)
    laid: dict[tuple[Candidate, IntraOpPlan], StageModel] = field(default_factory=dict)
    whole: dict[Device, WholeCost | None] = field(default_factory=dict)
    others: dict[tuple[Key, int], UpdatedTogether | None] = field(default_factory=dict)

    @property
    def slowdown(self) -> float:
        """Times that a step takes longer because it waits for the slowest node."""
        topology = self.operators.topology
        return straggling(topology.devices // topology.levels[0].size, topology.device)

    def together(self, candidate: Candidate) -> UpdatedTogether | None:
        """The operator problem as if all parameters were updated together, and its answer, where that matters. Of one
        stage: what several have once a step says little of the slowest. And of a tensor axis that has to split weights:
        where it hasn't, to split nothing is the answer, which the same on fewer devices does better."""
        asked = self.operators.split_weights and self.operators.prepared.training and not self.operators.quick
        if not asked or candidate.operator_ways == 1 or candidate.pp > 1:
            return None
        key = (self.operators.key(candidate), candidate.microbatches)
        if key not in self.others:
            fastest, decisions = self.operators.fastest(candidate), self.operators.decisions(candidate)
            prices = self.operators.prices(tensor_mesh(candidate.mesh), candidate.schedule)
            begins_s = sum(prices.collective_s("all-reduce", 1, axis) for axis in prices.mesh.operator_axes)
            saved_s = begins_s * sum(decision.stored is not None for decision in decisions)
            matters = saved_s > MATTERS * fastest.solution.time_s * candidate.microbatches
            self.others[key] = self.solved(candidate) if matters else None
        return self.others[key]

    def solved(self, candidate: Candidate) -> UpdatedTogether:
        problem, other = (self.operators.problem(candidate, together) for together in (0, candidate.microbatches))
        solution, pairs = Solver(other).solve(), zip(problem.groups, other.groups, strict=True)
        apart_s = sum(float((one.time_s - two.time_s).max(initial=0.0)) for one, two in pairs)
        return UpdatedTogether(self.operators.taken(candidate, solution), solution.bound, apart_s)

    def stage_model(self, candidate: Candidate, point: IntraOpPlan) -> StageModel:
        """What each stage holds and takes with these operators, wherever the chain is cut."""
        if (candidate, point) not in self.laid:
            topology = self.operators.topology
            stage_model = self.stage_model_on(candidate, point, topology.device)
            devices = devices_of(topology, candidate)
            own = {d: self.stage_model_on(candidate, point, d) for d in dict.fromkeys(devices)}
            ranks = tuple(own[device] for device in devices)
            self.laid[candidate, point] = replace(stage_model, ranks=ranks) if devices else stage_model
        return self.laid[candidate, point]

    def stage_model_on(self, candidate: Candidate, point: IntraOpPlan, device: Device) -> StageModel:
        """The same on one kind of device."""
        prices = self.operators.prices(tensor_mesh(candidate.mesh), candidate.schedule).on(device)
        ways = candidate.tp * (candidate.dp // candidate.dp_replicate if candidate.zero else 1)
        states = optimizer_states(self.training, self.operators.prepared.model, ways)
        passes = optimizer_passes(self.training)
        beyond = states_beyond(self.training, self.operators.prepared.model)
        data = replace(data_axis(candidate, prices, states), beyond=tuple(beyond.items()))
        chain = self.chain(candidate, point, device, data)
        compensates = isinstance(self.training, Training) and self.training.delay_compensation is not None
        together = looks_at_all(self.training)
        data = replace(with_shards(data, chain.held), together=together, compensates=compensates)
        headroom = headroom_bytes(self.operators.topology, device)
        if device not in self.whole:
            self.whole[device] = whole_cost(self.training, passes, self.operators.prepared.model, device)
        whole = self.whole[device]
        interleaved = self.interleaved_schedule(candidate, data.takes_turns(chain.held.kinds))
        once = in_one_pass(self.training)
        return StageModel(chain, candidate, data, states, passes, interleaved, headroom, whole=whole, one_pass=once)

    def scheduled(self, stage_model: StageModel, candidate: Candidate) -> StageModel:
        """That of a candidate that differs in its schedule alone."""
        turns = stage_model.data.takes_turns(stage_model.chain.held.kinds)
        return replace(stage_model, candidate=candidate, interleaved=self.interleaved_schedule(candidate, turns))

    def rigid(self, candidate: Candidate) -> bool:
        """Whether a memory limit is met by other operators as much as by recomputation: few segments repeat, or none
        may be recomputed. Of one stage: what several hold together says little of the fullest."""
        if candidate.operator_ways == 1 or candidate.pp > 1 or devices_of(self.operators.topology, candidate):
            return False
        model = self.operators.prepared.model
        few = 2 * len(model.blocks) > len(model.segments)
        return few or candidate.recompute == "none" or not self.operators.prepared.training

    def joint(self, candidate: Candidate, together: int = 0) -> Solver:
        """The operator problem under limits of what a candidate of one stage holds (``OperatorProblems.joint``)."""
        stage_model = self.stage_model(candidate, self.operators.fastest(candidate))
        flight = float(max(stage_model.in_flight)) if self.operators.prepared.training else 0.0
        share = parameter_share(stage_model.data, stage_model.states)
        if self.operators.prepared.by_rows:  # whose account counts those of others
            share -= stage_model.data.gradient_shares[SENDING]
        share *= not candidate.tables  # which lie elsewhere, and are most of the parameters
        held = HeldBytes(share, flight)
        return self.operators.joint(candidate, held, together)

    def chain(self, candidate: Candidate, point: IntraOpPlan, device: Device, data: DataAxis) -> Chain:
        """A point's prices along the chain; schedules and what is recomputed change nothing of it."""
        alike = replace(candidate, schedule="", virtual_stages=1, recompute="")
        key = (alike, data.late, point, device)
        if key not in self.chains:
            model, prices = self.operators.prepared.model, point.on(device)
            if point not in self.held:
                self.held[point] = held_by(model, prices)
            self.chains[key] = chain_of(model, prices, candidate, data, self.held[point])
        return self.chains[key]

    def interleaved_schedule(self, candidate: Candidate, turns: bool) -> InterleavedSchedule | None:
        """The actions of a schedule that gives ranks several stages, or splits the backward; kept while we search.

        turns  as of ``InterleavedSchedule``
        """
        if not is_interleaved(candidate.schedule):
            return None
        sizes = (candidate.schedule, candidate.pp, candidate.microbatches, candidate.virtual_stages)
        if (key := (*sizes, turns)) not in self.schedules:
            self.schedules[key] = InterleavedSchedule(*sizes, receives_ahead(self.operators.topology.device), turns)
        return self.schedules[key]


def exposed(spent_s: float, hidden_s: float, summed_s: float, update_s: float) -> float:
    return spent_s - hidden_s + summed_s + update_s


def shared_once_s(stage_model: StageModel) -> float:
    """Seconds once a step of the whole chain, of which ranks take an even share at least behind the schedule's last
    action. Where the backward is split, a rank that has little to sum may run that one: they share the update alone."""
    spent = stage_model.once_s((0, len(stage_model.chain)))
    return spent[3] if stage_model.data.late else exposed(*spent)
