"""One process of the measurement, started by torchrun: every exported program in turn, round after round.

    torchrun … worker.py OUT.json ROUNDS FOLDER …

Rounds are interleaved, so that what disturbs the machine for a while disturbs all plans alike. Each step is timed from
a barrier to a barrier, the optimizer's update included; rank 0 writes {folder: [seconds of each round]}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import autoplan
from autoplan.runtime.data import batch_source
from autoplan.runtime.launch import start_processes
from autoplan.runtime.program import Program

WARMING = 1  # rounds whose times aren't kept: connections are made, memory is touched for the first time


def step_s(program: Program, step: int) -> float:
    """One optimizer step, until the last rank is done."""
    batch = batch_source(program.spec, None, 0)(step)
    dist.barrier()
    start = time.perf_counter()
    program.step(batch)
    program.optimizer.step()
    dist.barrier()
    return time.perf_counter() - start


def started(folder: str) -> Program:
    program = autoplan.load(folder).program()
    program.init_weights(seed=0)
    return program


def main(out: str, rounds: int, folders: list[str]) -> None:
    torch.set_num_threads(1)
    start_processes()
    programs = {folder: started(folder) for folder in folders}
    times: dict[str, list[float]] = {folder: [] for folder in folders}
    for step in range(WARMING + rounds):
        for folder, program in programs.items():
            seconds = step_s(program, step)
            if step >= WARMING:
                times[folder].append(seconds)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
