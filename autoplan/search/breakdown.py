"""What a plan's step is made of: seconds by their cause, and when each pipeline rank does what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.cost.step import timeline_runs
from autoplan.ir.graph import Model
from autoplan.ir.record import PlanRecord
from autoplan.search.evaluate import Evaluated
from autoplan.search.repriced import repriced
from autoplan.search.step_seconds import gathered_late_s, once_of_ranks, once_s, scheduled

COMPUTE, WAIT, BUBBLE, UPDATE = "compute", "collectives", "bubble", "update"


@dataclass(frozen=True)
class Part:
    """Seconds of a step on one device, the mean over the pipeline ranks.

    kind  "compute", "collectives" that no compute hides, "bubble", or "update" of the parameters
    axis  of the collectives, "" of the rest
    """

    kind: str
    axis: str
    seconds: float


@dataclass(frozen=True)
class Span:
    """An action of the schedule, in seconds from the step's start.

    kind        F forward, B backward; I and W where it is split: the inputs' gradients, the weights'
    received_s  of it, spent first on the message that it needs, on its way
    """

    rank: int
    stage: int
    kind: str
    microbatch: int
    start_s: float
    end_s: float
    received_s: float


@dataclass(frozen=True)
class Breakdown:
    """What a step is made of.

    parts     add up to the predicted step time
    spans     of each pipeline rank, in order; without what happens once a step
    once_s    from the last backward to the step's end: gradient sums and the update
    """

    parts: tuple[Part, ...]
    spans: tuple[tuple[Span, ...], ...]
    once_s: float


def breakdown(record: PlanRecord) -> Breakdown:
    """The step of a plan, from the prices that the search compared."""
    _, found = repriced(record)
    line, spent_s = found.timeline, once_s(found.stage_model, found.stages, found.timeline)
    whole_s = line.step_s + spent_s
    scale = found.step_s / whole_s if whole_s else 1.0  # the slowest of many nodes
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for rank in range(found.candidate.pp):
        for axis, waited_s in exposed_on(found, record.model, rank):
            seconds[WAIT, axis] += waited_s / found.candidate.pp
    idle_s = float(line.bubble_fraction * line.step_s)
    seconds[COMPUTE, ""] = float(line.step_s) - idle_s - sum(seconds.values())
    seconds[BUBBLE, ""] = idle_s
    for key, ending_s in ending(found):
        seconds[key] += ending_s
    order = {COMPUTE: 0, WAIT: 1, BUBBLE: 2, UPDATE: 3}
    parts = [Part(*key, own_s * scale) for key, own_s in seconds.items() if own_s > 1e-9 * whole_s]
    parts.sort(key=lambda part: (order[part.kind], -part.seconds))
    return Breakdown(tuple(parts), spans_of(found, scale), spent_s * scale)


def exposed_on(found: Evaluated, model: Model, rank: int) -> Iterator[tuple[str, float]]:
    """(axis, seconds) of the collectives that a pipeline rank waits for while its microbatches run."""
    stage_model, candidate, stages = found.stage_model.at(rank), found.candidate, found.stages
    m, hosts = candidate.microbatches, stage_model.data.offload == "activations"
    prices, late_s = found.point.on(stage_model.data.prices.device), gathered_late_s(found.stage_model, stages)
    for k, stage in enumerate(stages):
        if k % candidate.pp != rank:
            continue
        at = (stage.first, stage.last)
        again, partly = stage_model.recomputed(at, stage.recompute, 0 if hosts else stage.selective)
        for segment, full, part in zip(model.segments[slice(*at)], again, partly, strict=True):
            for moved in prices[segment.block].moves:
                runs, cheap = 1 + int(full), int(part) * moved.again
                yield moved.step.axis, m * runs * (moved.forward_s - moved.hidden_forward_s)
                yield moved.step.axis, m * cheap * (moved.again_s - moved.hidden_again_s)
                if stage_model.data.prices.training:
                    yield moved.step.axis, m * (moved.backward_s - moved.hidden_backward_s)
        yield stage_model.data.axis, m * (stage_model.exposed_s(at) + sum(late_s[k]))
        yield "pp", sum(found.timeline.waits_s[max(k - 1, 0) : k + 1]) / 2  # as much on either side of a border


def ending(found: Evaluated) -> Iterator[tuple[tuple[str, str], float]]:
    """What follows the last backward: sums by their axes as on the pipeline rank that has most of them, the update."""
    pp, stages, stage_model = found.candidate.pp, found.stages, found.stage_model
    sums_s, updates_s = once_of_ranks(stage_model, stages)
    most = max(range(pp), key=sums_s.__getitem__)
    tensor_s = sum(stage_model.at(k).once_s((s.first, s.last))[2] for k, s in enumerate(stages) if k % pp == most)
    waited_s = once_s(stage_model, stages, found.timeline) - max(updates_s)
    beside_s = waited_s * tensor_s / sums_s[most] if tensor_s else 0.0
    yield (WAIT, stage_model.data.axis), waited_s - beside_s
    yield (WAIT, "tp"), beside_s
    yield (UPDATE, ""), max(updates_s)


def spans_of(found: Evaluated, scale: float) -> tuple[tuple[Span, ...], ...]:
    """Every action of the schedule with its times."""
    return tuple(
        tuple(
            Span(
                run.rank, *run.action, float(run.start_s) * scale, float(run.end_s) * scale, float(run.waited_s) * scale
            )
            for run in row
        )
        for row in timeline_runs(*scheduled(found.stage_model, found.stages))
    )
