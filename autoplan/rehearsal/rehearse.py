"""A folder's program, rehearsed: one rank of each class by itself, then all ranks together."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from autoplan.errors import AutoplanError, InputsError, RehearsalError
from autoplan.export.folder import program_spec, read_folder
from autoplan.ir.record import PlanRecord
from autoplan.rehearsal.classes import rank_classes
from autoplan.rehearsal.rank import rehearse_rank
from autoplan.rehearsal.records import Call, RankClass, RankTrace
from autoplan.rehearsal.result import Rehearsal, RehearsedClass
from autoplan.rehearsal.world.deadlock import Deadlock
from autoplan.rehearsal.world.matching import Mismatch, mismatches
from autoplan.rehearsal.world.refinement import refine
from autoplan.rehearsal.world.timeline import simulate
from autoplan.report.words import headline
from autoplan.runtime.spec import PIPELINE, ProgramSpec
from autoplan.verify.local_ranks import can_fork

EAGER_BYTES = 1 << 62  # every send ends by itself


def rehearse(folder: str | os.PathLike, ranks: str = "classes", microbatches: int | None = None) -> Rehearsal:
    """Runs an exported folder's program.py and runtime at full size, without a device.

    ranks         "classes": the first rank of each class; "all"; or some, "0,17": whether all meet isn't known then
    microbatches  that are run of a step; None: enough to fill the schedule and see what each further one adds
    RehearsalError where torch or the machine takes no fake device; InputsError for other ranks.
    """
    start = time.monotonic()
    record = read_folder(folder)
    spec = program_spec(record, folder)
    if spec.forward_only:
        raise RehearsalError("a plan of Inference()", "a rehearsal is of a training's step", "rehearse a training plan")
    classes = chosen(spec, ranks)
    few, many = runs(spec, microbatches)
    asked = [(Path(folder), each.first, count) for each in classes for count in dict.fromkeys((many, few))]
    found = dict(zip(asked, each_apart(asked), strict=True))
    done, failed = [], []
    for each in classes:
        less, more = (found[Path(folder), each.first, count] for count in (few, many))
        if isinstance(more, str) or isinstance(less, str):
            failed.append((each, more if isinstance(more, str) else str(less)))
        else:
            done.append(rehearsed(record, spec, each, less, more))
    unmet, deadlock = together(spec, done) if ranks in ("classes", "all") and not failed else (None, None)
    return Rehearsal(
        headline(record), spec.lowered.mesh.devices, spec.microbatches, many, record.cluster.usable_bytes, tuple(done),
        tuple(failed), unmet, deadlock, time.monotonic() - start,
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


def runs(spec: ProgramSpec, asked: int | None) -> tuple[int, int]:
    """Numbers of microbatches to run: as many as fill the schedule, and some more, by which the memory's growth is
    known; twice the same where that is all of them."""
    count, pp = spec.microbatches, spec.size(PIPELINE)
    if asked is not None:
        if not 1 <= asked <= count:
            raise InputsError(f"microbatches={asked}", f"the step has {count}", "give 1 or more of these")
        return asked, asked
    several = len(spec.lowered.stages) > pp
    few, step = (2 * pp, pp) if several else (pp + 1, 1)  # interleaved schedules run in rounds of pp
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
    spec: ProgramSpec, done: Sequence[RehearsedClass]
) -> tuple[tuple[Mismatch, ...], Deadlock | None]:
    """Whether every call meets its others, and the order on the streams admits an end, however sends are done."""
    world = refine(spec.lowered.mesh.devices, [one.ranks for one in done], [one.trace for one in done])
    unmet = mismatches(world)
    if unmet:
        return unmet, None
    for eager_bytes in (None, EAGER_BYTES):
        result = simulate(world, free, eager_bytes)
        if isinstance(result, Deadlock):
            return unmet, result
    return unmet, None


def free(trace: RankTrace, call: Call) -> float:
    """The order alone is asked for."""
    return 0.0


Asked = tuple[Path, int, int]


def each_apart(asked: Sequence[Asked]) -> list[RankTrace | str]:
    """Each rank in a process of its own: torch takes a fake device for good, and only where no other is in use."""
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    with context.Pool(min(len(asked), len(os.sched_getaffinity(0))), maxtasksperchild=1) as pool:
        return pool.map(alone, asked, chunksize=1)


def alone(asked: Asked) -> RankTrace | str:
    """One rank's trace, or what broke it off."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # engines print their whole schedule where a rank breaks off
    folder, rank, microbatches = asked
    try:
        return rehearse_rank(folder, rank, microbatches)
    except Exception as error:  # whatever it is, the other ranks' findings are worth having
        return explained(error)


def explained(error: Exception) -> str:
    """An error with the line of the program, or of the runtime, at which it came."""
    if isinstance(error, AutoplanError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.endswith("program.py") or "/autoplan/" in f.filename]
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}{where}: {first}"
