"""A plan's predicted step and the measured one, part by part."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.cluster.interval import interval_of
from autoplan.ir.record import PlanRecord
from autoplan.measurement.measurement import Measured, MeasuredPeak, Measurement
from autoplan.measurement.rank_step import HOST, OTHERS, RankStep
from autoplan.report.waits import per_device
from autoplan.report.words import headline
from autoplan.search.breakdown import BUBBLE, COMPUTE, UPDATE, WAIT, breakdown

PIPELINE = "pp"
CALIBRATE = "measure a profile of these devices with cost_models.calibrate and plan for it"
KERNELS = f"Its price is the device profile's: {CALIBRATE}"
WIRES = f"Its price is that of the links in the profile: {CALIBRATE}; look, too, for a rank that is slower than others"
LAUNCHES = (
    "The device waits for the host to launch kernels, which has no price: larger microbatches, or compile=True, leave "
    "it less to launch"
)
CORES = (
    "Python between operators has no price, nor what else runs on these cores: larger microbatches leave it less, and "
    "fewer processes than cores leave each its own"
)
STAGES = (
    "Stages wait for one another and for messages: see in autoplan trace --measured which of them takes longer than "
    "predicted"
)


@dataclass(frozen=True)
class RankMeasured:
    """What one rank measured.

    steps_s     of each timed step, from a device at rest to a device at rest
    parts       of the profiled one
    pipeline    its index along the pipeline
    peak_bytes  of tensors on its device; None on a CPU
    """

    device: str
    steps_s: tuple[float, ...]
    parts: RankStep
    pipeline: int
    peak_bytes: int | None


def beside(record: PlanRecord, ranks: Sequence[RankMeasured]) -> Measurement:
    """The measurement of all ranks beside the plan's prediction."""
    predicted = record.chosen.predicted
    steps_s = tuple(max(times) for times in zip(*(rank.steps_s for rank in ranks), strict=True))
    step_s = statistics.median(steps_s)
    idle_remedy = CORES if ranks[0].device == "cpu" else LAUNCHES
    profiled_s = max(rank.parts.step_s for rank in ranks)
    interval = interval_of(record.cluster, predicted.step_time_s)
    return Measurement(
        plan=headline(record),
        device=ranks[0].device,
        ranks=len(ranks),
        steps_s=steps_s,
        step_s=step_s,
        predicted_s=predicted.step_time_s,
        interval=(interval.low_s, interval.high_s),
        parts=parts_beside(record, [rank.parts for rank in ranks], step_s, idle_remedy),
        axes=axes_beside(record, [rank.parts for rank in ranks]),
        peaks=peaks_beside(record, ranks),
        profiled_s=profiled_s,
    )


def parts_beside(
    record: PlanRecord, ranks: Sequence[RankStep], step_s: float, idle_remedy: str
) -> tuple[Measured, ...]:
    """Both steps by the same parts; the measured ones add up to ``step_s``.

    What a profiler adds to a step is a host's time: it shortens what is idle first, and only then the rest alike.
    """
    expected: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in breakdown(record).parts:
        expected[part.kind, part.axis] += part.seconds
    waited = mean_by_axis([rank.waited_s for rank in ranks])
    compute_s = statistics.fmean(rank.compute_s for rank in ranks)
    update_s = statistics.fmean(rank.update_s for rank in ranks)
    busy_s = compute_s + update_s + sum(waited.values())
    scale, idle_s = (1.0, step_s - busy_s) if busy_s <= step_s else (step_s / busy_s, 0.0)
    found = [
        Measured("compute", expected[COMPUTE, ""], compute_s * scale, KERNELS),
        Measured("parameter update", expected[UPDATE, ""], update_s * scale, KERNELS),
    ]
    idle = Measured("nothing computes or is sent", 0.0, idle_s, idle_remedy)
    bubble_s = expected[BUBBLE, ""]
    awaited = {axis: seconds for (kind, axis), seconds in expected.items() if kind == WAIT}
    if OTHERS in waited:  # over which axis isn't known: all of it beside all
        all_s = sum(awaited.values()) + bubble_s
        found.append(Measured("waiting for other ranks", all_s, sum(waited.values()) * scale, WIRES))
        found.append(idle)
        return tuple(found)
    for axis in sorted((awaited.keys() | waited.keys()) - {PIPELINE}):
        name = "waiting for copies from or to the host" if axis == HOST else f"waiting for collectives over {axis}"
        found.append(Measured(name, awaited.get(axis, 0.0), waited.get(axis, 0.0) * scale, WIRES))
    if record.chosen.mesh.size(PIPELINE) > 1:
        expected_s = awaited.get(PIPELINE, 0.0) + bubble_s
        measured_s = waited.get(PIPELINE, 0.0) * scale + idle_s
        found.append(Measured("pipeline bubble and messages", expected_s, measured_s, STAGES))
    else:
        found.append(idle)
    return tuple(found)


def axes_beside(record: PlanRecord, ranks: Sequence[RankStep]) -> tuple[Measured, ...]:
    """What is on its way over each axis, hidden or not; nothing where the profile doesn't say over which."""
    measured = mean_by_axis([rank.busy_s for rank in ranks])
    if not measured or OTHERS in measured:
        return ()
    expected: defaultdict[str, float] = defaultdict(float)
    for moved in per_device(record):
        expected[moved.axis] += moved.seconds
    axes = sorted(expected.keys() | measured.keys())
    return tuple(Measured(axis, expected.get(axis, 0.0), measured.get(axis, 0.0), WIRES) for axis in axes)


def peaks_beside(record: PlanRecord, ranks: Sequence[RankMeasured]) -> tuple[MeasuredPeak, ...]:
    most: dict[int, int] = {}
    for rank in ranks:
        if rank.peak_bytes is not None:
            most[rank.pipeline] = max(most.get(rank.pipeline, 0), rank.peak_bytes)
    predicted = record.chosen.predicted.peak_bytes
    return tuple(MeasuredPeak(at, predicted[at].total, most[at]) for at in sorted(most))


def mean_by_axis(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over all ranks; one that has nothing on an axis counts as 0."""
    axes = dict.fromkeys(axis for rank in ranks for axis in rank)
    return {axis: sum(rank.get(axis, 0.0) for rank in ranks) / len(ranks) for axis in axes}
