"""What no plan of a setting undercuts, as tight as is asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from autoplan.cost import Device
from autoplan.cost.interleaved import runs_rounds
from autoplan.cost.prices import STREAMED
from autoplan.cost.step import sharing_of, straggling
from autoplan.search.bounds.block_bounds import (
    BYTES,
    FloorOf,
    Known,
    held_in,
    leaner_of,
    leanest_of,
    least_schedule_s,
    rates_of,
)
from autoplan.search.bounds.knapsack import least_shared_s, short_of_bytes
from autoplan.search.inter_op.candidate_costs import Laid, exposed
from autoplan.search.inter_op.interleaved_ranks import pieces_of
from autoplan.search.inter_op.stage_model import Loads
from autoplan.search.intra_op.joint_updates import MATTERS
from autoplan.search.intra_op.memory_constrained import ROUNDING
from autoplan.search.intra_op.pareto import kept_alone, states_alone, steep
from autoplan.search.intra_op.plan import Point
from autoplan.search.intra_op.solve import Weights
from autoplan.search.proof.boxes import Cell, Cells, least_of_cells
from autoplan.search.proof.interleaved_bound import least_chunks_s, roomy
from autoplan.search.proof.interleaved_lp import Tilt
from autoplan.search.space.candidates import Setting
from autoplan.search.space.heterogeneous import devices_of, spare_bytes
from autoplan.solver.engines import INSTALLED, Infeasible

ROUNDED = 8  # bytes by which a plan's account may be rounded
ANY = 0  # in the place of a point's number: whatever the operators
MOST_ALIKE = 6  # doublings of the microbatches, beyond which all settings' shares of it are said to be alike


@dataclass
class Bounded(Laid):
    """Bounds settings from below."""

    alone: dict[Device, Bounded] = field(default_factory=dict)

    def rough_s(self, setting: Setting) -> float:
        """As without an offload; with one, what the host takes once a step is the least of the operators known: which
        are the fastest is asked at the device's own pace."""
        if setting.offload == "none" or devices_of(self.operators.topology, setting):
            return super().rough_s(setting)
        if (setting, ANY) not in self.least:
            known, gap = self.known(setting, short=False), self.operators.fastest(setting).gap
            self.least[setting, ANY] = self.spread_s(known.loads, known.once_s) * (1 - gap) - self.apart_s(setting)
        return self.least[setting, ANY]

    def shared_s(self, setting: Setting, wall: float) -> float:
        """Seconds of a step that no plan of a setting undercuts under the wall, by what its ranks can hold alone;
        infinite where none fits. Said at once, whatever the chain's length."""
        topology, rough_s = self.operators.topology, self.rough_s(setting)
        alone = sharing_of(topology.device, setting.pp, setting.dp * setting.tp).gain == 1
        if not alone or devices_of(topology, setting) or self.whole_rigid(setting):
            return rough_s
        fastest = self.operators.fastest(setting)
        loads = self.loads(setting, fastest)
        if not np.isfinite(wall) or not short_of_bytes(loads, wall):
            return rough_s
        known = self.known(setting)
        once = known.once_s / setting.pp
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device)
        slowed *= 1 - fastest.gap if runs_rounds(setting.schedule) else 1.0
        schedule_s = least_shared_s(known, wall, max(rough_s / slowed - once, 0.0))
        return max(rough_s, (schedule_s + once) * slowed - self.apart_s(setting))

    def least_s(
        self,
        setting: Setting,
        wall: float,
        enough_s: float = math.inf,
        *,
        whole: bool = True,
        divides: float = math.inf,
    ) -> float:
        """Seconds of a step that no plan of a setting undercuts under the wall; infinite where none fits.

        enough_s  beyond which it doesn't matter
        whole     as tight as is known; False: what is quick to say
        divides   steps of the simplex method that dividing what operators can be into cells may take (``Cells.until``)
        """
        topology = self.operators.topology
        alone = sharing_of(topology.device, setting.pp, setting.dp * setting.tp).gain == 1
        if runs_rounds(setting.schedule):
            return self.least_chunked_s(setting, wall, enough_s, whole=whole, divides=divides)
        if not alone:
            return self.rough_s(setting)
        if self.whole_rigid(setting):
            return self.least_within_s(setting, wall)
        ranks = self.known_at(setting)
        once = min(known.once_s for known in ranks) / setting.pp
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device)
        schedule_s, limit_s = least_schedule_s(ranks, wall), (enough_s + self.apart_s(setting)) / slowed - once
        alike = len({id(known) for known in ranks}) == 1
        cells = self.cells(setting, ranks[0], divides) if whole and alike and schedule_s < limit_s else None
        if cells is not None:
            schedule_s = least_of_cells(cells, partial(least_in_s, ranks, wall), limit_s, schedule_s)
        return max((schedule_s + once) * slowed - self.apart_s(setting), self.rough_s(setting))

    def whole_rigid(self, setting: Setting) -> bool:
        """Whether nothing at all can be recomputed, of one stage with a tensor axis."""
        again = self.operators.prepared.training and setting.recompute != "none" and max(self.uses.values()) > 1
        return self.rigid(setting) and not again

    def least_within_s(self, setting: Setting, wall: float) -> float:
        """The same where a wall is met by operators alone: the fastest that fit take so much longer than the fastest
        in each microbatch. Eager programs hold less than the operator problem counts."""
        rough_s, fastest = self.rough_s(setting), self.operators.fastest(setting)
        if not (self.operators.fuses and np.isfinite(wall)):
            return rough_s
        other, topology = self.together(setting), self.operators.topology
        joint = self.joint(setting, None if other is None else other.problem)
        quickest = fastest if other is None else other.fastest
        if joint.bytes(quickest.solution) <= wall - self.constants(setting, quickest):
            return rough_s
        try:
            solution = joint.quickest(self.room(setting, wall + ROUNDED) * (1 + ROUNDING))
        except Infeasible:  # the solver was out of time
            return rough_s
        if solution is None:
            return float("inf")
        slowed = setting.microbatches * straggling(topology.devices // topology.levels[0].size, topology.device)
        if other is not None:
            return max(rough_s, solution.bound * slowed)
        apart = 1 - MATTERS  # which the two problems then are at most
        return max(rough_s, (rough_s + max(solution.bound - fastest.solution.objective, 0.0) * slowed) * apart)

    def known_at(self, setting: Setting) -> list[Known]:
        """What is known on each pipeline rank's devices, with the operators that are best there."""
        topology = self.operators.topology
        devices = devices_of(topology, setting)
        if not devices:
            return [self.known(setting)] * setting.pp
        found = {}
        for device in dict.fromkeys(devices):
            if device not in self.alone:
                self.alone[device] = Bounded(self.operators.on(device), self.training)
            known = self.alone[device].known(setting)
            found[device] = replace(known, loads=replace(known.loads, spare=spare_bytes(topology, device)))
        return [found[device] for device in devices]

    def known(self, setting: Setting, *, short: bool = True) -> Known:
        """The same on one kind of device; ``short`` of bytes, perhaps."""
        points = self.points(setting, short=short)
        fastest, each = points[0], [self.loads(setting, point) for point in points]
        rate, chain, floor = adding_rate(each[0]), each[0].chain, self.operators.floor(setting)
        if not self.operators.fuses:
            kept = [min(price.kept_bytes for price in alike) for alike in zip(*(p.prices for p in points), strict=True)]
            floor = partial(with_kept, floor, kept)
        floor = partial(adding, floor, rate)
        own = [self.own_s(point, rate) for point in points]
        beside = [loads.chain.forward_s + loads.chain.backward_s - s for loads, s in zip(each, own, strict=True)]
        spent_s = own[0] + np.minimum.reduce(beside)
        loads = replace(each[0], chain=chain.holding({"backward_s": spent_s - chain.forward_s}))
        lean = leanest_of([found.chain for found in each], loads.data.cast_share)
        rates, once_s = rates_of(fastest.prices, self.uses), min(map(once_at_least_s, each))
        forward_s = np.maximum.reduce([found.chain.forward_s for found in each])
        return Known(loads, lean, own[0], self.blocks, floor, rates, rate, once_s, forward_s)

    def points(self, setting: Setting, *, short: bool = True) -> list[Point]:
        """The fastest operators, and those that hold least: of everything, of parameters, of what is kept; and, where
        bytes are short, altogether."""
        fastest = self.operators.fastest(setting)
        if setting.tp == 1:
            return [fastest]
        steeply = steep(fastest.solution, self.loads(setting, fastest))
        prices = (steeply, states_alone(fastest.solution), kept_alone(fastest.solution))
        points = [fastest, *(self.operators.priced(setting, weights) for weights in prices)]
        if short and self.rigid(setting):
            with suppress(Infeasible):  # the solver was out of time
                points.append(self.operators.taken(setting, self.joint(setting).leanest))
        return points

    def own_s(self, point: Point, rate: float) -> np.ndarray:
        """[segments] forward and backward, and the adding up of gradients, of these operators."""
        spent = [p.forward_s + p.backward_s + rate * sum(p.parameter_bytes) for p in point.prices]
        return np.array(spent)[list(self.blocks)]

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Of each segment."""
        return tuple(segment.block for segment in self.operators.prepared.model.segments)

    @cached_property
    def uses(self) -> Counter[int]:
        """Segments of each block."""
        return Counter(self.blocks)

    def least_chunked_s(
        self, setting: Setting, wall: float, enough_s: float, *, whole: bool, divides: float
    ) -> float:
        """The same where ranks have several stages, or the backward is split; what happens once a step is that of the
        fastest operators, evenly on all ranks."""
        fastest, topology = self.operators.fastest(setting), self.operators.topology
        gain = sharing_of(topology.device, setting.pp, setting.dp * setting.tp).gain
        loads, leaner, divided = self.loads(setting, fastest), None, None
        pieces = pieces_of(loads, wall)
        once = exposed(*loads.once_s((0, len(loads.chain)))) / setting.pp
        if roomy(pieces):
            pieces = replace(pieces, recompute="none")
        else:
            known = self.known(setting)
            once = known.once_s / setting.pp
            lean = known.loads.chain.holding({name: known.least(name) for name in BYTES})
            pieces = pieces_of(replace(known.loads, chain=lean), wall, least=True)
            leaner = leaner_of(known, float(pieces.rounds.held[0][0].mean()))
            cells = self.cells(setting, known, divides) if whole else None
            divided = None if cells is None else (cells, partial(held_in, known, pieces, leaner))
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device) * (1 - fastest.gap)
        limit_s = ((enough_s + self.apart_s(setting)) / slowed - once) * gain
        tilt = self.tilt(setting) if whole else None
        schedule_s = least_chunks_s(pieces, leaner, limit_s, tilt, divided, whole=whole) / gain
        return max(self.rough_s(setting), (schedule_s + once) * slowed - self.apart_s(setting))

    def cells(self, setting: Setting, known: Known, divides: float) -> Cells | None:
        """What the operators of the heaviest block can be; None where that isn't divided: without a tensor axis they
        are one; what is kept on the host, or in an eager program, isn't what the operator problem counts; and CBC is
        begun anew for each of its programs."""
        one = setting.tp == 1 or known.heaviest is None
        if one or divides <= 0 or known.loads.data.offload == "activations" or not (self.operators.fuses and INSTALLED):
            return None
        assert known.heaviest is not None
        leanest = float(known.least("parameters")[known.blocks.index(known.heaviest)])
        cells = self.operators.cells(setting, known.heaviest, leanest)
        cells.until = cells.spent + divides
        return cells if cells.small else None

    def tilt(self, setting: Setting) -> Tilt:
        """By what a segment's forward, and its backward, may be quicker than with the operators of the least time."""
        pairs = zip(self.operators.fastest(setting).prices, self.operators.parts_s(setting), strict=True)
        each = [(p.forward_s - least.forward_s, p.backward_s - least.backward_s) for p, least in pairs]
        return Tilt(*np.maximum(np.array(each)[list(self.blocks)].T, 0.0))


def adding(floor: FloorOf, rate: float, block: int, weights: Weights) -> float:
    """A floor with the seconds that gradients' adding up takes for each byte of parameters."""
    return floor(block, Weights(weights.state + rate, weights.kept))


def adding_rate(loads: Loads) -> float:
    """Seconds for each byte of a segment's parameters in which its gradients are added up, a microbatch's share of a
    step: those of every microbatch but the first, of whose share as much is said as many settings have alike."""
    prices, many = loads.data.prices, loads.setting.microbatches
    share = 1 - 2.0 ** -min(math.floor(math.log2(many)), MOST_ALIKE)
    each_s = (prices.accumulate_s(2 * STREAMED) - prices.accumulate_s(STREAMED)) / STREAMED
    return share * each_s if prices.training else 0.0


def with_kept(floor: FloorOf, kept: Sequence[float], block: int, weights: Weights) -> float:
    """A floor whose bytes kept are those of the leanest operators known: eager programs keep less than the operator
    problem counts."""
    return floor(block, Weights(weights.state, 0.0)) + weights.kept * kept[block]


def least_in_s(ranks: Sequence[Known], wall: float, cell: Cell) -> float:
    """``least_schedule_s`` of ranks of one kind where the heaviest block's operators are in a cell."""
    return least_schedule_s([ranks[0].within(cell)] * len(ranks), wall)


def once_at_least_s(loads: Loads) -> float:
    """Seconds once a step of the whole chain, but for sums of gradients over the tensor axes: operators that are slower
    in a microbatch may have none."""
    spent_s, hidden_s, _, update_s = loads.once_s((0, len(loads.chain)))
    return exposed(spent_s, hidden_s, 0.0, update_s)
