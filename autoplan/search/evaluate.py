"""One setting, priced: its operators' layouts, its cuts, its step time and memory."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from autoplan.options import Inference, Training
from autoplan.pricing import Device, Timeline, timeline
from autoplan.pricing.chunks import Rounds, rounds_of, runs_rounds
from autoplan.pricing.step import (
    optimizer_passes,
    optimizer_states,
    sharing_of,
    straggling,
)
from autoplan.pricing.whole import whole_cost
from autoplan.search.bounds import Known, leaner_of, least_schedule_s
from autoplan.search.candidates import Setting
from autoplan.search.chain import chain_of
from autoplan.search.choice import StageChoice, StageMemory, tensor_mesh
from autoplan.search.chunk_bound import least_chunks_s, roomy
from autoplan.search.chunks import choose_chunks, evenly
from autoplan.search.columns import EASING, MOST_COLUMNS, between, duals, steep
from autoplan.search.floors import lower_bound, rounds, uneven_rounds
from autoplan.search.kinds import devices_of, pace, spare_bytes
from autoplan.search.load import Loads, data_axis
from autoplan.search.operators import Operators, Point
from autoplan.search.ranks import backwards_of, memory_of, pieces_of, stages_of, unties
from autoplan.search.refine import Bound, Runs, refine
from autoplan.search.stages import choose_cuts


@dataclass(frozen=True)
class Evaluated:
    """A setting with the best that was found for it.

    step_s   of one optimizer step, by the schedule's timeline and what happens once a step
    memory   of each pipeline rank
    gap      proven, relative: the larger of the operators' and the stages'
    """

    setting: Setting
    point: Point
    loads: Loads
    stages: tuple[StageChoice, ...]
    memory: tuple[StageMemory, ...]
    timeline: Timeline
    step_s: float
    gap: float

    @property
    def recomputes(self) -> bool:
        return any(stage.recompute or stage.selective for stage in self.stages)

    @property
    def fullest(self) -> int:
        """The pipeline rank whose devices have least left, or lack most."""
        return max(range(len(self.memory)), key=lambda k: self.memory[k].total - self.loads.at(k).spare)

    def over_bytes(self, wall: float) -> int:
        """By how much the fullest stage exceeds the wall, which is that of the smallest device; 0 where it fits."""
        return max(0, round(self.memory[self.fullest].total - self.loads.at(self.fullest).spare - wall))

    @property
    def exceeds_host(self) -> bool:
        """Whether more is kept on the host of some device than it holds."""
        hosts = [self.loads.at(k).data.prices.device.host for k in range(len(self.memory))]
        pairs = zip(self.memory, hosts, strict=True)
        return any(host is not None and memory.host > host.memory_bytes for memory, host in pairs)


TOLERANCE = 0.002
"""Nothing is priced for the sake of a smaller share of the step than this; the gap that is reported holds it."""


BYTES = ("kept", "inputs", "outputs", "constants", "working", "parameters", "selective", "rebuilt")
"""Columns of a chain that leaner operators may lessen."""

RUNNER_UP = 1.25  # a plan up to this many times slower than the best so far is finished, to stand beside it


@dataclass
class Evaluator:
    """Prices settings; keeps what it found until the search ends."""

    operators: Operators
    training: Training | Inference
    seconds: float = 0.0
    schedules: dict[tuple[str, int, int, int], Rounds] = field(default_factory=dict)
    alone: dict[Device, Evaluator] = field(default_factory=dict)
    least: dict[tuple[Setting, int], float] = field(default_factory=dict)

    def evaluate(self, setting: Setting, wall: float, limit_s: float = float("inf")) -> Evaluated | None:
        """The fastest plan of a setting under the wall, or None where none fits or none takes less than ``limit_s``.

        The fastest operators that keep everything are the best where they fit. Where they don't, leaner ones, which
        may need less recomputation, are generated (``columns``).
        """
        fastest = self.operators.fastest(setting)
        least_s = self.at_least_s(setting, fastest)
        if least_s >= limit_s:
            return None
        best = None if self.idle(setting, fastest) else self.with_point(setting, fastest, wall, limit_s)
        if setting.tp == 1 or (best is not None and least_s >= best.step_s * (1 - TOLERANCE)):
            return best
        if limit_s < float("inf") and (self.operators.quick or (best is None and runs_rounds(setting.schedule))):
            return best  # leaner operators seldom win where several stages on a rank have lost; the gap covers them
        return self.with_columns(setting, best, wall, limit_s)

    def with_columns(
        self, setting: Setting, best: Evaluated | None, wall: float, limit_s: float
    ) -> Evaluated | None:
        """The best of the fastest operators and of leaner ones, each asked for by the stages of the one before; then of
        those between what is too fast to fit and what fits."""
        fastest = self.operators.fastest(setting)
        tried, last, ease = [fastest], best, 1.0
        fast, lean = fastest, None
        for _ in range(MOST_COLUMNS):
            weights = duals(last.loads, last.stages) if last is not None else steep(fastest.solution, ease)
            if weights is None:  # it fits as it is: something between it and the fastest may, too
                ease *= EASING
                weights = steep(fastest.solution, ease)
            point = self.operators.priced(setting, weights)
            known = any(point is one for one in tried)
            if known and lean is not None:
                midway = between(fast.solution, lean.solution, weights)
                point = point if midway is None else self.operators.priced(setting, midway)
            if any(point is one for one in tried):
                break
            tried.append(point)
            if self.idle(setting, point) or self.at_least_s(setting, point) >= limit_s:
                continue
            found = self.with_point(setting, point, wall, limit_s)
            if found is None and known:
                fast = point
            elif found is None and ease == 1.0:
                break  # bytes alone counted, and still nothing fits
            elif found is not None:
                last = found
                lean = point if lean is None or point.solution.time_s < lean.solution.time_s else lean
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
                limit_s = min(limit_s, best.step_s)
        return best

    def idle(self, setting: Setting, point: Point) -> bool:
        """Whether the same runs on fewer devices: a tensor axis that nobody asked for, and that splits nothing."""
        return setting.tp > 1 and point.idle and not self.operators.split_weights

    def leanest(self, setting: Setting) -> Evaluated:
        """The plan of a setting that needs the fewest bytes, under no wall: every segment recomputed that may be."""
        recompute = "full" if setting.recompute == "auto" else setting.recompute
        setting = replace(setting, recompute=recompute)
        fastest = self.operators.fastest(setting)
        points = [fastest]
        if setting.tp > 1:
            points.append(self.operators.priced(setting, steep(fastest.solution)))
        found = [self.with_point(setting, point, float("inf")) for point in points]
        return min((e for e in found if e is not None), key=lambda e: e.over_bytes(0.0))

    def at_least_s(self, setting: Setting, point: Point) -> float:
        """Seconds of a step with these operators, were the chain cut at will and nothing recomputed; what happens once
        a step takes at least a stage's even share of what it takes for the whole chain on one."""
        if (setting, id(point)) not in self.least:
            self.least[setting, id(point)] = self.evenly_s(setting, point)
        return self.least[setting, id(point)]

    def evenly_s(self, setting: Setting, point: Point) -> float:
        devices = devices_of(self.operators.topology, setting)
        if not devices:
            loads, topology = self.loads(setting, point), self.operators.topology
            chain_s = float((loads.chain.forward_s + loads.chain.backward_s).sum()) + loads.least_messages_s
            once = exposed(*loads.once_s((0, len(loads.chain))))
            slower = straggling(topology.devices // topology.levels[0].size, topology.device)
            return (chain_s * rounds(setting, self.operators) + once) / setting.pp * slower
        uses = Counter(segment.block for segment in self.operators.prepared.model.segments)
        chain_s = sum(n * (point.prices[b].forward_s + point.prices[b].backward_s) for b, n in uses.items())
        own = {d: [p.forward_s + p.backward_s for p in point.on(d)] for d in dict.fromkeys(devices)}
        slowest_s = [p.forward_s + p.backward_s for p in point.prices]
        return chain_s * uneven_rounds(setting, self.operators, [pace(own[d], slowest_s) for d in devices])

    def rough_s(self, setting: Setting) -> float:
        """A lower bound that is known already; on several kinds of device, what their own operators take at least."""
        if devices_of(self.operators.topology, setting):
            return lower_bound(self.operators, setting)
        fastest = self.operators.fastest(setting)
        return self.at_least_s(setting, fastest) * (1 - fastest.gap)

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
        schedule_s = least_schedule_s(ranks, wall)
        once = min(exposed(*known.loads.once_s((0, len(known.blocks)))) for known in ranks) / setting.pp
        step_s = (schedule_s + once) * straggling(topology.devices // topology.levels[0].size, topology.device)
        return max(step_s, self.rough_s(setting))

    def known_at(self, setting: Setting) -> list[Known]:
        """What is known on each pipeline rank's devices, with the operators that are best there."""
        topology = self.operators.topology
        devices = devices_of(topology, setting)
        if not devices:
            return [self.known(setting)] * setting.pp
        found = {}
        for device in dict.fromkeys(devices):
            if device not in self.alone:
                self.alone[device] = Evaluator(self.operators.on(device), self.training)
            known = self.alone[device].known(setting)
            found[device] = replace(known, loads=replace(known.loads, spare=spare_bytes(topology, device)))
        return [found[device] for device in devices]

    def known(self, setting: Setting) -> Known:
        """The same on one kind of device."""
        fastest = self.operators.fastest(setting)
        leanest = self.operators.priced(setting, steep(fastest.solution)) if setting.tp > 1 else fastest
        loads, lean = self.loads(setting, fastest), self.loads(setting, leanest).chain
        blocks = tuple(segment.block for segment in self.operators.prepared.model.segments)
        own_s = np.array([fastest.prices[b].forward_s + fastest.prices[b].backward_s for b in blocks])
        return Known(loads, lean, own_s, blocks, self.operators.floor(setting))

    def least_chunked_s(self, setting: Setting, wall: float, enough_s: float, *, whole: bool) -> float:
        """The same where ranks have several stages, or the backward is split; what happens once a step is that of the
        fastest operators, evenly on all ranks."""
        fastest, topology = self.operators.fastest(setting), self.operators.topology
        gain = sharing_of(topology.device, setting.pp, setting.dp * setting.tp).gain
        loads, leaner = self.loads(setting, fastest), None
        pieces = pieces_of(loads, wall)
        if roomy(pieces):
            pieces = replace(pieces, recompute="none")
        else:
            known = self.known(setting)
            lean = loads.chain.holding({name: known.least(name) for name in BYTES})
            pieces, leaner = pieces_of(replace(loads, chain=lean), wall), leaner_of(known)
        once = exposed(*loads.once_s((0, len(loads.chain)))) / setting.pp
        slowed = straggling(topology.devices // topology.levels[0].size, topology.device) * (1 - fastest.gap)
        schedule_s = least_chunks_s(pieces, leaner, (enough_s / slowed - once) * gain, whole=whole) / gain
        return max(self.rough_s(setting), (schedule_s + once) * slowed)

    def with_point(
        self, setting: Setting, point: Point, wall: float, limit_s: float = float("inf")
    ) -> Evaluated | None:
        """The best cuts for these operators, or None where none fits or the schedule takes far more than a limit."""
        start = time.perf_counter()
        loads = self.loads(setting, point)
        if runs_rounds(setting.schedule):
            return self.with_chunks(loads, point, wall, limit_s)
        options = [loads.at(stage).options(stage, wall) for stage in range(setting.pp)]
        seconds = [mix.seconds for mix in options]
        slow = [part - loads.at(stage).hidden_s(stage) for stage, part in enumerate(seconds)]
        cuts = choose_cuts(seconds, setting.microbatches, slow)
        self.seconds += time.perf_counter() - start
        gain = sharing_of(self.operators.topology.device, setting.pp, setting.dp * setting.tp).gain
        if cuts is None or cuts.objective_s / gain >= limit_s * RUNNER_UP:
            return None

        def price(runs: Runs) -> Evaluated:
            stages = tuple(
                StageChoice(*at, int(mix.full[at]), int(mix.selective[at]))
                for at, mix in zip(runs, options, strict=True)
            )
            return finish(setting, point, loads, stages, max(gap, point.gap))

        gap = (cuts.objective_s - cuts.bound_s) / max(cuts.objective_s, 1e-30)
        first = price(cuts.stages)
        if first.step_s >= limit_s * RUNNER_UP:
            return first
        topology = self.operators.topology
        slower = straggling(topology.devices // topology.levels[0].size, topology.device)
        bound = Bound(loads, seconds, lambda stage, at: exposed(*loads.at(stage).once_s(at)), slower, gain)
        return refine(first, cuts.stages, bound, price)

    def with_chunks(self, loads: Loads, point: Point, wall: float, limit_s: float) -> Evaluated | None:
        """The same of a schedule that gives a rank several stages, or splits the backward."""
        start, setting = time.perf_counter(), loads.setting
        gain = sharing_of(self.operators.topology.device, setting.pp, setting.dp * setting.tp).gain
        topology = self.operators.topology
        once = exposed(*loads.once_s((0, len(loads.chain)))) / setting.pp
        left_s = limit_s / straggling(topology.devices // topology.levels[0].size, topology.device) - once
        pieces = pieces_of(loads, wall)
        found = choose_chunks(pieces, left_s * gain) if np.isfinite(wall) else evenly(pieces)
        self.seconds += time.perf_counter() - start
        if found is None or found.cuts.objective_s / gain >= limit_s * RUNNER_UP:
            return None
        stages = stages_of(found.division)
        if unties(loads, stages):
            return None
        gap = (found.cuts.objective_s - found.cuts.bound_s) / max(found.cuts.objective_s, 1e-30)
        return finish(setting, point, loads, stages, max(gap, point.gap))

    def loads(self, setting: Setting, point: Point) -> Loads:
        topology = self.operators.topology
        loads = self.loads_on(setting, point, topology.device)
        devices = devices_of(topology, setting)
        own = {d: self.loads_on(setting, point, d) for d in dict.fromkeys(devices)}
        return replace(loads, ranks=tuple(own[device] for device in devices)) if devices else loads

    def loads_on(self, setting: Setting, point: Point, device: Device) -> Loads:
        """The same on one kind of device."""
        prices = self.operators.prices(tensor_mesh(setting.mesh)).on(device)
        ways = setting.tp * (setting.dp if setting.zero else 1)
        states = optimizer_states(self.training, self.operators.prepared.model, ways)
        passes = optimizer_passes(self.training)
        data = data_axis(setting, prices, states)
        chain = chain_of(self.operators.prepared.model, point.on(device), setting, data)
        spare = spare_bytes(self.operators.topology, device)
        whole = whole_cost(self.training, passes, self.operators.prepared.model, device)
        return Loads(chain, setting, data, states, passes, self.rounds(setting), spare, whole=whole)

    def rounds(self, setting: Setting) -> Rounds | None:
        """The actions of a schedule that gives ranks several stages, or splits the backward; kept while we search."""
        if not runs_rounds(setting.schedule):
            return None
        key = (setting.schedule, setting.pp, setting.microbatches, setting.virtual_stages)
        if key not in self.schedules:
            self.schedules[key] = rounds_of(*key)
        return self.schedules[key]


def finish(setting: Setting, point: Point, loads: Loads, stages: tuple[StageChoice, ...], gap: float) -> Evaluated:
    """Runs the schedule, and adds what happens once a step on the stage where that takes longest."""
    topology = loads.data.prices.topology
    backward_s, weights_s = backwards_of(loads, stages)
    line = timeline(
        setting.schedule,
        [loads.at(k).forward_s((s.first, s.last)) for k, s in enumerate(stages)],
        backward_s,
        [loads.message_s(k, s.first) for k, s in enumerate(stages[1:], start=1)],
        setting.microbatches,
        sharing_of(topology.device, setting.pp, setting.dp * setting.tp),
        setting.virtual_stages,
        weights_s,
    )
    memory = memory_of(loads, stages)
    nodes = topology.devices // topology.levels[0].size
    step_s = (line.step_s + once_s(loads, stages)) * straggling(nodes, topology.device)
    return Evaluated(setting, point, loads, stages, memory, line, step_s, gap)


def once_s(loads: Loads, stages: tuple[StageChoice, ...]) -> float:
    """Seconds after the last backward that nothing hides: reductions and the update, on the slowest rank."""
    ranks = loads.setting.pp
    spent = [exposed(*loads.at(k).once_s((s.first, s.last))) for k, s in enumerate(stages)]
    return max(sum(spent[rank::ranks]) for rank in range(ranks))


def exposed(spent_s: float, hidden_s: float, summed_s: float, update_s: float) -> float:
    return spent_s - hidden_s + summed_s + update_s
