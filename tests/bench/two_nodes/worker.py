"""One process of the two-node test, started by torchrun: every job in turn, on one process group.

    torchrun … worker.py JOBS.json

A job loads an exported folder, begins at its weights or at a checkpoint, takes its steps, and saves.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

import autoplan
from autoplan.runtime.checkpoint.checkpoint import latest_checkpoint
from autoplan.runtime.optim.asynchronous.arrivals import Arrival, in_turn
from autoplan.runtime.optim.asynchronous.asynchronous_servers import AsynchronousServers
from autoplan.runtime.parallel.servers.backups import in_turns
from autoplan.runtime.program import Program


@dataclass(frozen=True)
class Job:
    """Steps [first, last) of a training, from the weights where first is 0, else from the latest checkpoint.

    batches  a safetensors file, its tensors named <step>/<input>
    folder   of the exported plan
    work     where checkpoints go, and the result: losses-<last>.json, state.pt
    saves    after which steps a checkpoint is written
    """

    folder: str
    weights: str
    batches: str
    work: str
    first: int
    last: int
    saves: tuple[int, ...]


def run(job: Job) -> None:
    """Every rank calls it; the first one writes the result."""
    work, batches = Path(job.work), load_file(job.batches)
    program = autoplan.load(job.folder).program()
    if job.first == 0:
        torch.manual_seed(dist.get_rank())  # unseeded, each start of a process has a random state of its own
        program.load_weights(job.weights)
    else:
        found = latest_checkpoint(work)
        assert found is not None, work
        program.load_checkpoint(found)
    assert program.steps == job.first, (program.steps, job)
    pin(program, job)
    losses = []
    for step in range(job.first, job.last):
        names = (name for name in batches if name.startswith(f"{step}/"))
        losses.append(program.step({name.split("/", 1)[1]: batches[name] for name in names}).item())
        program.optimizer.step()
        if step + 1 in job.saves:
            program.save_checkpoint(work / f"step-{step + 1}")
    state = dict(program.full_state_dict())
    if dist.get_rank() == 0:
        (work / f"losses-{job.last}.json").write_text(json.dumps(losses))
        torch.save(state, work / "state.pt")
    program.close()


def pin(program: Program, job: Job) -> None:
    """Workers take turns where who comes first differs from run to run; they begin anew behind a checkpoint."""
    if program.backups:
        workers, first = program.backups.size, program.backups.first
        program.backups.pinned = [in_turns(step, workers, first) for step in range(job.first, job.last)]
    if isinstance(program.servers, AsynchronousServers):
        order: list[Arrival] = []
        begun = job.first
        for end in (step for step in (*job.saves, job.last) if begun < step):
            turns = in_turn(program.servers.workers, end - begun)
            order += [one._replace(read=one.read + len(order)) for one in turns]
            begun = end
        program.servers.pin(dict.fromkeys(range(program.servers.workers), order))


def main(file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # one for several programs, which nobody watches
    for job in json.loads(Path(file).read_text()):
        run(Job(**job))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
