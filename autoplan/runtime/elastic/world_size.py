"""Elastic training: the folder of a plan for as many processes as torchrun started.

With ``torchrun --nnodes 1:4`` processes come and go, and all start anew whenever their number changes. Where it isn't
the plan's, the first process of each node has another process plan for what is there (``autoplan.elastic``), so that no
trainer holds a search; the others wait for its folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from autoplan.errors import LaunchError
from autoplan.ir.checksums import bytes_hash
from autoplan.runtime.elastic.scaled_batch import BATCHES, KEEP

FOLDER, PLAN, PLANNER = "elastic", "plan.json", "autoplan.elastic"
PAUSE_S = 0.2
TOLD = 2  # the exit status of a process that has told its error
AGAIN = 75  # that of a rank whose training isn't done, and is to be started again with those that are there
OF_A_RANK = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def folder_for_world(folder: Path, devices: int, timeout_s: float, batch: str = KEEP) -> Path:
    """The folder of the plan for torchrun's processes: the plan's own where their number is its, else one below it.

    devices    of the plan in this folder
    timeout_s  longest that a process waits for another's plan
    batch      "keep" the rows of a step, or "scale" them with the processes
    LaunchError without torchrun, and where no plan can be found: the first process of a node tells why.
    """
    if batch not in BATCHES:
        raise LaunchError(f"batch={batch!r}", "no such choice", f"use one of {BATCHES}")
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
    if not all(os.environ.get(name) for name in names):
        raise LaunchError("an elastic start", "torchrun tells how many processes there are", "start it with torchrun")
    given = [os.environ[name] for name in names]
    if not all(value.isdecimal() for value in given):
        said = ", ".join(f"{name}={value}" for name, value in zip(names, given, strict=True))
        raise LaunchError(said, "they are numbers of processes", "start it with torchrun, which sets them")
    ranks, per_node, local = map(int, given)
    if devices == ranks:
        return folder
    target = target_of(folder, ranks, per_node, batch)
    if not (target / PLAN).exists() and local == 0:
        plan_apart(folder, ranks, per_node, target, batch)
    until = time.monotonic() + timeout_s
    while not (target / PLAN).exists():
        if time.monotonic() > until:
            cause = f"the first process of this node made no plan within {timeout_s:g} s"
            raise LaunchError(f"a plan for {ranks} processes", cause, "look at that process' output for the reason")
        time.sleep(PAUSE_S)
    return target


def target_of(folder: Path, ranks: int, per_node: int, batch: str) -> Path:
    """Where the plan for so many processes, so many a node, lies; another plan in the folder has others."""
    kind = "" if batch == KEEP else f"-{batch}"
    return folder / FOLDER / f"{ranks // per_node}x{per_node}{kind}-{bytes_hash((folder / PLAN).read_bytes())[:12]}"


def plan_apart(folder: Path, ranks: int, per_node: int, target: Path, batch: str) -> None:
    """Has another process plan and export; LaunchError with what it said where it can't."""
    command = [sys.executable, "-m", PLANNER, str(folder), str(ranks), str(per_node), str(target), batch]
    ended = subprocess.run(command, capture_output=True, text=True, env=without_ranks())
    if ended.returncode:
        said = ended.stderr.strip() or f"planning ended with exit status {ended.returncode}"
        cause = said if ended.returncode == TOLD else said.splitlines()[-1]
        remedy = "mend that, or start another number of them"
        raise LaunchError(f"{ranks} processes", f"there is no plan for them: {cause}", remedy)
    sys.stderr.write(ended.stderr)


def without_ranks() -> dict[str, str]:
    """The environment of a process that is no rank."""
    return {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
