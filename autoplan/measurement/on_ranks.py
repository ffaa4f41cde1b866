"""A program's steps, timed and profiled, on every rank."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from autoplan.arguments.places import place_for
from autoplan.arguments.values import is_whole
from autoplan.errors import InputsError, ParallelismError
from autoplan.ir.record import PlanRecord
from autoplan.measurement.measurement import Measurement
from autoplan.measurement.part_by_part import RankMeasured, beside
from autoplan.measurement.profiled import profiled, synchronize
from autoplan.measurement.rank_step import rank_step
from autoplan.options import Inference
from autoplan.runtime.collectives.objects import from_all, from_first, together
from autoplan.runtime.data.microbatches import Batch
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import PIPELINE

WARM = 3  # steps before those that are timed: kernels are compiled, memory is allocated


def measure_program(
    record: PlanRecord, program: Program, batch: Batch | None, steps: int, trace: Path | None = None
) -> Measurement:
    """See ``Plan.measure``; every rank calls it and gets the same.

    trace  where the first rank's profile is to stay
    """
    check_steps(steps)
    if not isinstance(program, Program):
        remedy = "call it on plan.program()'s result: plan.measure(program, batch)"
        raise InputsError("plan.measure(program)", f"it is a {type(program).__name__}", remedy)
    kept = trace if program.rank == 0 else None
    if (program.spec.parallelism, program.spec.lowered.mesh) != (record.chosen.parallelism, record.chosen.mesh):
        remedy = "give the one that plan.program() made"
        raise InputsError("plan.measure(program)", "the program is another plan's", remedy)
    together(lambda: kept and place_for(kept))  # the first rank's node alone needs the folder
    given = batch_source(program.spec, None, 0) if batch is None else lambda step: batch
    number = iter(range(WARM + steps + 1))

    def step() -> None:
        program.step(given(next(number)))

    times = []
    for at in range(WARM + steps):
        synchronize(program.device)
        if at == WARM:
            restart_peak(program.device)
        began_s = time.perf_counter()
        step()
        program.optimizer.step()
        synchronize(program.device)
        times.append(time.perf_counter() - began_s)
    peak = peak_bytes(program.device)
    events = together(lambda: profiled(step, program.optimizer.step, program.device, lambda: from_all(None), kept))
    own = RankMeasured(
        device_name(program.device), tuple(times[WARM:]), rank_step(events, axes_of(program)),
        program.axes[PIPELINE].rank if PIPELINE in program.axes else 0, peak,
    )  # fmt: skip
    ranks = from_all(own)
    found = from_first(together(lambda: beside(record, ranks) if program.rank == 0 else None))
    assert found is not None
    return found


def check_steps(steps: int) -> None:
    if not is_whole(steps) or steps < 1:
        raise InputsError(f"steps={steps!r}", "so many steps can't be timed", "give 1 or more")


def check_trains(record: PlanRecord) -> None:
    if isinstance(record.training, Inference):
        raise ParallelismError("plan.measure()", "a plan of Inference() has no step", "time its program's calls")


def axes_of(program: Program) -> dict[str, str]:
    """The axis of each process group that the program's collectives run in, by the group's name."""
    found = {str(axis.group.group_name): axis.name for axis in program.axes.values() if axis.group is not None}
    for mesh in program.storage.meshes:
        for name in mesh.mesh_dim_names or ():
            found.setdefault(str(mesh.get_group(name).group_name), name)
    return found


def device_name(device: torch.device) -> str:
    named = getattr(torch.get_device_module(device), "get_device_name", None)  # most accelerators' modules have it
    return device.type if named is None else named(device)


def restart_peak(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats()


def peak_bytes(device: torch.device) -> int | None:
    """Of tensors on the device at most since ``restart_peak``; None on a CPU, which counts none."""
    return None if device.type == "cpu" else torch.accelerator.max_memory_allocated()
