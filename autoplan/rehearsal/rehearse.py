"""A folder's program, rehearsed: one rank of each class by itself, then all ranks together."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autoplan.cost.step import receives_ahead
from autoplan.errors import InputsError, RehearsalError
from autoplan.export.folder import opened
from autoplan.ir.record import PlanRecord
from autoplan.rehearsal.outcome import Rehearsal, RehearsedClass, WorldOutcome
from autoplan.rehearsal.pricing.price_check import balance
from autoplan.rehearsal.pricing.priced_plan import PlanPrices
from autoplan.rehearsal.pricing.seconds import prices_of
from autoplan.rehearsal.rank_classes import rank_classes
from autoplan.rehearsal.records import Call, RankClass, RankTrace
from autoplan.rehearsal.world.deadlock import Deadlock
from autoplan.rehearsal.world.matching import mismatches
from autoplan.rehearsal.world.rank_equivalence import World, refine
from autoplan.rehearsal.world.simulated_step import Timeline, simulate
from autoplan.report.words import headline
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec

RANKS = "autoplan.rehearsal.rank_workers"
"""The module that runs ranks: in a process of its own, for what it brings along of torch takes a second that no trainer
is to spend."""
EAGER_BYTES = 1 << 62  # every send ends by itself


def rehearse(folder: str | os.PathLike, ranks: str = "classes", microbatches: int | None = None) -> Rehearsal:
    """Runs an exported folder's program.py and runtime at full size, without a device.

    ranks         "classes": the first rank of each class; "all"; or some, "0,17": whether all meet isn't known then
    microbatches  that are run of a step; None: enough to fill the schedule and see what each further one adds
    RehearsalError where torch or the machine takes no fake device; InputsError for other ranks; PlanFileError where the
    folder isn't what was exported.
    """
    start = time.monotonic()
    plan = opened(folder)
    record, spec, program = plan.record, plan.spec(), plan.program_text().decode()
    if spec.forward_only:
        raise RehearsalError("a plan of Inference()", "a rehearsal is of a training's step", "rehearse a training plan")
    if spec.parallelism.tolerates_stragglers:
        backups, ahead = spec.parallelism.backups, spec.parallelism.ahead
        what = f"backups={backups}" if backups else f"ahead={ahead!r}"
        raise RehearsalError(f"a plan of {what}", "which workers are done first no rehearsal knows", "rehearse another")
    classes = chosen(spec, ranks)
    few, many = runs(spec, microbatches, apart=bool(receives_ahead(record.cluster.profile()[0])))
    asked = [(Path(folder), each.first, count, True) for each in classes for count in dict.fromkeys((many, few))]
    found = dict(zip(asked, each_apart(asked), strict=True))
    done, failed = [], []
    fewer: list[RankTrace] = []
    for each in classes:
        less, more = (found[Path(folder), each.first, count, True] for count in (few, many))
        if isinstance(more, str) or isinstance(less, str):
            failed.append((each, more if isinstance(more, str) else str(less)))
        else:
            done.append(rehearsed(record, spec, each, less, more))
            fewer.append(less)
    whole = ranks in ("classes", "all") and not failed
    prices = PlanPrices.of(record)
    met = together(spec, done, fewer, prices, program) if whole else WorldOutcome()
    balances = tuple(balance(prices, one.trace) for one in done)
    return Rehearsal(
        headline(record), spec.lowered.mesh.devices, spec.microbatches, many, record.cluster.usable_bytes, tuple(done),
        tuple(failed), met, balances, record.chosen.predicted.step_time_s, time.monotonic() - start,
    )  # fmt: skip


def chosen(spec: ProgramSpec, ranks: str) -> tuple[RankClass, ...]:
    """The classes to rehearse."""
    devices = spec.lowered.mesh.devices
    if ranks == "classes":
        return rank_classes(spec)
    if ranks == "all":
        return tuple(RankClass((rank,), f"rank {rank}") for rank in range(devices))
    numbers = ranks.split(",")
    if not all(n.strip().isdecimal() and int(n) < devices for n in numbers):
        raise InputsError(f"ranks={ranks!r}", f"the plan has ranks 0 to {devices - 1}", "give classes, all, or 0,17")
    return tuple(RankClass((int(n),), f"rank {int(n)}") for n in dict.fromkeys(numbers))


def runs(spec: ProgramSpec, asked: int | None, *, apart: bool) -> tuple[int, int]:
    """Numbers of microbatches to run: as many as fill the schedule, and some more, by which is known what further ones
    add; twice the same where that is all of them.

    apart  messages run beside compute; else ranks wait for each other in turns, which come round after pp microbatches
    """
    count, pp = spec.microbatches, spec.size(PIPELINE)
    if asked is not None:
        if not 1 <= asked <= count:
            raise InputsError(f"microbatches={asked}", f"the step has {count}", "give 1 or more of these")
        return asked, asked
    several = len(spec.lowered.stages) > pp
    few, step = 2 * pp, pp if several or not apart else 1  # interleaved schedules run in rounds of pp
    return (few, few + step) if few + step < count else (count, count)


def rehearsed(
    record: PlanRecord, spec: ProgramSpec, ranks: RankClass, less: RankTrace, more: RankTrace
) -> RehearsedClass:
    """A class, its peak carried on to the step's number of microbatches."""
    beyond = more.microbatches - less.microbatches
    growth = (more.peak.bytes - less.peak.bytes) / beyond if beyond else 0.0
    peak = more.peak.bytes + round(growth * (spec.microbatches - more.microbatches))
    memory = record.chosen.predicted.peak_bytes[spec.lowered.mesh.coordinate(ranks.first, PIPELINE)]
    return RehearsedClass(ranks, more, peak, growth, memory.total)


def together(
    spec: ProgramSpec, done: Sequence[RehearsedClass], fewer: Sequence[RankTrace], prices: PlanPrices, program: str
) -> WorldOutcome:
    """Whether every call meets its others, and the order on the streams admits an end, however sends are done.

    fewer    each class run with fewer microbatches, by which is known what each further one takes
    program  the text of program.py
    """
    traces, classes = [one.trace for one in done], [one.ranks for one in done]
    world = refine(spec.lowered.mesh.devices, classes, traces)
    unmet = mismatches(world)
    if unmet:
        return WorldOutcome(unmet)
    for eager_bytes in (None, EAGER_BYTES):
        result = simulate(world, free, eager_bytes)
        if isinstance(result, Deadlock):
            return WorldOutcome(unmet, result)
    run, before = traces[0].microbatches, fewer[0].microbatches
    if run == before < spec.microbatches or spec.continuous:  # a drained step says nothing of those in a full pipeline
        return WorldOutcome(unmet)
    step_s = timed_s(world, traces, prices, program)
    if step_s is not None and before < run:
        before_s = timed_s(refine(spec.lowered.mesh.devices, classes, fewer), fewer, prices, program)
        further = (spec.microbatches - run) / (run - before)
        step_s = None if before_s is None else step_s + further * (step_s - before_s)
    return WorldOutcome(unmet, None, step_s)


def timed_s(world: World, traces: Sequence[RankTrace], prices: PlanPrices, program: str) -> float | None:
    """Seconds of a step by the order of all calls, at the plan's prices; None where it doesn't end."""
    timed = simulate(world, prices_of(prices, traces, program))
    return timed.seconds if isinstance(timed, Timeline) else None


def free(trace: RankTrace, call: Call) -> float:
    """The order alone is asked for."""
    return 0.0


Asked = tuple[Path, int, int | None, bool]
"""A folder, a rank, its microbatches (None: all), and whether segments are compiled where the plan compiles them."""


def each_apart(asked: Sequence[Asked]) -> list[RankTrace | str]:
    """Each rank in a process of its own: torch takes a fake device for good, only where no other is in use, and only
    before autograd first ran. So an interpreter is started anew, and forks."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # a real accelerator leaves no place for the fake one; of a library out of torch's tree its name is enough
    unseen = {"CUDA_VISIBLE_DEVICES": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environment = {**os.environ, "PYTHONPATH": path, **unseen}
    ended = subprocess.run(
        [sys.executable, "-m", RANKS], input=pickle.dumps(list(asked)), capture_output=True, env=environment
    )
    if ended.returncode:
        last = (ended.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        raise RehearsalError(f"exit status {ended.returncode}", f"the ranks' process broke off: {last}", "report it")
    return pickle.loads(ended.stdout)
