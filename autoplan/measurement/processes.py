"""A plan's step measured by processes of this machine, which torchrun starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from autoplan.arguments.places import place_for
from autoplan.errors import InputsError, LaunchError
from autoplan.export.folder import on_processors
from autoplan.ir.codec import decode
from autoplan.ir.record import PlanRecord
from autoplan.measurement.measurement import Measurement
from autoplan.measurement.on_ranks import check_steps, check_trains, measure_program
from autoplan.runtime.data.microbatches import Batch
from autoplan.runtime.program import Program


def measure(
    record: PlanRecord, source: Path | Callable[[Path], Path], program: Program | None, batch: Batch | None, steps: int,
    trace: str | os.PathLike | None,
) -> Measurement:  # fmt: skip
    """See ``Plan.measure``.

    source  the plan's folder, or what writes it to one
    """
    check_trains(record)
    if program is not None:
        return measure_program(record, program, batch, steps, None if trace is None else Path(trace))
    kept = None if trace is None else place_for(trace)
    check_alone(record, batch, steps)
    ranks = record.chosen.mesh.devices
    if isinstance(source, Path):
        return measure_here(source, ranks, steps, kept)
    with tempfile.TemporaryDirectory(prefix="autoplan-measured-") as folder:
        return measure_here(source(Path(folder) / "out"), ranks, steps, kept)


def check_alone(record: PlanRecord, batch: object, steps: int) -> None:
    """LaunchError where this machine alone can't run a plan; InputsError for what a measurement by its processes
    doesn't take."""
    check_steps(steps)
    if batch is not None:
        raise InputsError("plan.measure(batch=…)", "its own processes step on random values", "give a program, too")
    cluster, devices, here = record.cluster, record.chosen.mesh.devices, torch.accelerator.device_count()
    if cluster.nodes > 1 or (not on_processors(cluster) and here < devices):
        cause = f"the plan is one for {cluster}; this machine has {here} accelerator{'s' * (here != 1)}"
        torchrun = f"torchrun --nnodes {cluster.nodes} --nproc-per-node {devices // cluster.nodes}"
        raise LaunchError("plan.measure()", cause, f"export it, and on its nodes: {torchrun} -m autoplan measure out/")


def measure_here(folder: Path, ranks: int, steps: int, trace: Path | None = None) -> Measurement:
    """Starts as many processes as the plan has devices, each with a device of its own where there are accelerators.

    folder  an exported plan
    trace   where the first rank's profile is to stay
    LaunchError, with what they said, where a process ended otherwise than well.
    """
    with tempfile.TemporaryDirectory(prefix="autoplan-measured-") as there:
        result = Path(there) / "measured.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone", "-m",
            "autoplan", "measure", str(folder), "--steps", str(steps), "--json", str(result),
        ]  # fmt: skip
        command += ["--trace", str(trace.resolve())] if trace is not None else []
        surroundings = {"OMP_NUM_THREADS": "1"} | os.environ
        ended = subprocess.run(command, env=surroundings, capture_output=True, text=True)
        if ended.returncode or not result.is_file():
            raise LaunchError(f"measuring {folder}", said(ended.stderr), "see that the folder's train.py runs here")
        return decode(Measurement, json.loads(result.read_text()), "measured.json")


def said(errors: str) -> str:
    """What a rank told of a user's mistake; else the last line that isn't torchrun's own account of it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("autoplan: error: ") or "Error: " in line]
    return (told or lines or ["a process ended without a word"])[0].removeprefix("autoplan: error: ")
