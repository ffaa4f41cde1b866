"""What no plan of a setting undercuts, as tight as is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from autoplan.pricing import Device
from autoplan.pricing.chunks import runs_rounds
from autoplan.pricing.step import sharing_of, straggling
from autoplan.search.bounds import BYTES, FloorOf, Known, held_in, leaner_of, least_schedule_s, rates_of
from autoplan.search.candidates import Setting
from autoplan.search.cells import Cell, Cells, least_of_cells
from autoplan.search.chunk_bound import least_chunks_s, roomy
from autoplan.search.chunk_rows import Tilt
from autoplan.search.columns import steep
from autoplan.search.engines import INSTALLED
from autoplan.search.kinds import devices_of, spare_bytes
from autoplan.search.laid import Laid, exposed
from autoplan.search.load import Loads
from autoplan.search.ranks import pieces_of
from autoplan.search.shares import least_shared_s, short_of_bytes
from autoplan.search.solve import Weights


@dataclass
class Bounded(Laid):
    """Bounds settings from below."""

    alone: dict[Device, Bounded] = field(default_factory=dict)

    def shared_s(self, setting: Setting, wall: float) -> float:
        """Seconds of a step that no plan of a setting undercuts under the wall, by what its ranks can hold alone;
        infinite where none fits. Said at once, whatever the chain's length."""
        topology, rough_s = self.operators.topology, self.rough_s(setting)
        alone = sharing_of(topology.device, setting.pp, setting.dp * setting.tp).gain == 1
        if not alone or devices_of(topology, setting):
            return rough_s
        fastest = self.operators.fastest(setting)
        loads = self.loads(setting, fastest)
        if not np.isfinite(wall) or not short_of_bytes(loads, wall):
            return rough_s
        once = once_at_least_s(loads) / setting.pp
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device)
        slowed *= 1 - fastest.gap if runs_rounds(setting.schedule) else 1.0
        schedule_s = least_shared_s(self.known(setting), wall, max(rough_s / slowed - once, 0.0))
        return max(rough_s, (schedule_s + once) * slowed)

    def least_s(
        self, setting: Setting, wall: float, enough_s: float = float("inf"), *, whole: bool = True
    ) -> float:
        """Seconds of a step that no plan of a setting undercuts under the wall; infinite where none fits.

        enough_s  beyond which it doesn't matter
        whole     as tight as is known; False: what is quick to say
        """
        topology = self.operators.topology
        alone = sharing_of(topology.device, setting.pp, setting.dp * setting.tp).gain == 1
        if runs_rounds(setting.schedule):
            return self.least_chunked_s(setting, wall, enough_s, whole=whole)
        if not alone:
            return self.rough_s(setting)
        ranks = self.known_at(setting)
        once = min(once_at_least_s(known.loads) for known in ranks) / setting.pp
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device)
        schedule_s = least_schedule_s(ranks, wall)
        cells = self.cells(setting, ranks[0]) if whole and len({id(known) for known in ranks}) == 1 else None
        if cells is not None:
            limit_s = enough_s / slowed - once
            schedule_s = least_of_cells(cells, partial(least_in_s, ranks, wall), limit_s, schedule_s)
        return max((schedule_s + once) * slowed, self.rough_s(setting))

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

    def known(self, setting: Setting) -> Known:
        """The same on one kind of device."""
        fastest = self.operators.fastest(setting)
        leanest = self.operators.priced(setting, steep(fastest.solution)) if setting.tp > 1 else fastest
        loads, lean = self.loads(setting, fastest), self.loads(setting, leanest).chain
        own_s = np.array([price.forward_s + price.backward_s for price in fastest.prices])[list(self.blocks)]
        rates = rates_of(fastest.prices, self.uses)
        floor = self.operators.floor(setting)
        if not self.operators.fuses:
            both = zip(fastest.prices, leanest.prices, strict=True)
            kept = [min(price.kept_bytes, other.kept_bytes) for price, other in both]
            floor = partial(with_kept, floor, kept)
        return Known(loads, lean, own_s, self.blocks, floor, rates)

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Of each segment."""
        return tuple(segment.block for segment in self.operators.prepared.model.segments)

    @cached_property
    def uses(self) -> Counter[int]:
        """Segments of each block."""
        return Counter(self.blocks)

    def least_chunked_s(self, setting: Setting, wall: float, enough_s: float, *, whole: bool) -> float:
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
            once = once_at_least_s(loads) / setting.pp
            known = self.known(setting)
            lean = loads.chain.holding({name: known.least(name) for name in BYTES})
            pieces = pieces_of(replace(loads, chain=lean), wall)
            leaner = leaner_of(known, float(pieces.rounds.held[0][0].mean()))
            cells = self.cells(setting, known) if whole else None
            divided = None if cells is None else (cells, partial(held_in, known, pieces, leaner))
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device) * (1 - fastest.gap)
        tilt, limit_s = self.tilt(setting) if whole else None, (enough_s / slowed - once) * gain
        schedule_s = least_chunks_s(pieces, leaner, limit_s, tilt, divided, whole=whole) / gain
        return max(self.rough_s(setting), (schedule_s + once) * slowed)

    def cells(self, setting: Setting, known: Known) -> Cells | None:
        """What the operators of the heaviest block can be; None where that isn't divided: without a tensor axis they
        are one; what is kept on the host, or in an eager program, isn't what the operator problem counts; and CBC is
        begun anew for each of its programs."""
        one = setting.tp == 1 or known.heaviest is None
        if one or known.loads.data.offload == "activations" or not (self.operators.fuses and INSTALLED):
            return None
        assert known.heaviest is not None
        leanest = float(known.least("parameters")[known.blocks.index(known.heaviest)])
        cells = self.operators.cells(setting, known.heaviest, leanest)
        return cells if cells.small else None

    def tilt(self, setting: Setting) -> Tilt:
        """By what a segment's forward, and its backward, may be quicker than with the operators of the least time."""
        pairs = zip(self.operators.fastest(setting).prices, self.operators.parts_s(setting), strict=True)
        each = [(p.forward_s - least.forward_s, p.backward_s - least.backward_s) for p, least in pairs]
        return Tilt(*np.maximum(np.array(each)[list(self.blocks)].T, 0.0))


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
