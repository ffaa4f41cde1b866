"""One process of the measurement, started by torchrun: every exported program in turn, round after round.

    torchrun … worker.py OUT.json ROUNDS FOLDER …

Rounds are interleaved, so that what disturbs the machine for a while disturbs all plans alike. Each step is timed from
a barrier to a barrier, the optimizer's update included, replicas' steps by themselves together until they meet; a plan
whose steps are long is timed in fewer rounds. Rank 0 writes {folder: [seconds of each round]}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import autoplan
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.optim.asynchronous.asynchronous_servers import AsynchronousServers
from autoplan.runtime.program import Program

WARMING = 1     # rounds whose times aren't kept: connections are made, memory is touched for the first time
LEAST = 2       # rounds that are timed in any case
TOGETHER = 4    # steps from barrier to barrier of workers that don't wait for one another
ENOUGH_S = 15   # of timed steps, after which a plan is left out of the rounds that remain


def step_s(program: Program, step: int) -> float:
    """Seconds of one optimizer step, until the last rank is done; as rank 0 has them, on every rank."""
    batch, servers = batch_source(program.spec, None, 0)(step), program.servers
    alone = program.spec.parallelism.local_steps or 1
    steps = TOGETHER if isinstance(servers, AsynchronousServers) else alone
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        program.step(batch)
        program.optimizer.step()
    if isinstance(servers, AsynchronousServers):
        servers.come()
    dist.barrier()
    seconds = torch.tensor((time.perf_counter() - start) / steps, dtype=torch.float64)
    dist.broadcast(seconds, src=0)
    return seconds.item()


def started(folder: str) -> Program:
    program = autoplan.load(folder).program()
    program.init_weights()
    return program


def main(out: str, rounds: int, folders: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # one for several programs, which nobody watches
    programs = {folder: started(folder) for folder in folders}
    times: dict[str, list[float]] = {folder: [] for folder in folders}
    for step in range(WARMING + rounds):
        for folder, program in programs.items():
            if len(times[folder]) >= LEAST and sum(times[folder]) > ENOUGH_S:
                continue
            seconds = step_s(program, step)
            if step >= WARMING:
                times[folder].append(seconds)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(times))
    for program in programs.values():
        program.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
