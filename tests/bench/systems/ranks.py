"""What runs on each rank: exported folders, loaded as a user loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import autoplan
from autoplan.runtime.optim.asynchronous.arrivals import in_turn
from autoplan.runtime.optim.asynchronous.asynchronous_servers import AsynchronousServers
from autoplan.runtime.parallel.servers.backups import in_turns
from autoplan.runtime.program import Program
from autoplan.verify.compare import Run
from autoplan.verify.local_ranks import RankPool
from tests.bench.systems.mixed import Steps

Batch = Mapping[str, torch.Tensor]
SECONDS = 240.0  # longest a job may take
STALE_STEPS = 6  # of an asynchronous system: its replicas meet, its versions follow one another


@dataclass(frozen=True)
class Train:
    """Optimizer steps, one on each of the batches."""

    folder: str
    weights: str
    batches: Sequence[Batch]


@dataclass(frozen=True)
class FirstSteps:
    """One step on each of several batches, always from the same weights: the optimizer isn't run.

    gradients  on how many of the batches, the first ones, gradients are kept
    """

    folder: str
    weights: str
    batches: Sequence[Batch]
    gradients: int


Job = Train | FirstSteps


def run(pool: RankPool, jobs: Sequence[Job]) -> list[Run | Steps]:
    """What each job left behind, as rank 0 has it."""
    return pool.run(on_rank, tuple(jobs), timeout_s=SECONDS)[0]


def on_rank(rank: int, world: int, jobs: Sequence[Job]) -> list[Run | Steps]:
    """All jobs, one after another; every rank takes part, rank 0 has the whole tensors."""
    return [train(job) if isinstance(job, Train) else first_steps(job) for job in jobs]


def loaded(folder: str, weights: str) -> Program:
    program = autoplan.load(folder).program()
    program.load_weights(weights)
    if program.backups:
        workers, first = program.backups.size, program.backups.first
        program.backups.pinned = [in_turns(step, workers, first) for step in range(STALE_STEPS)]
    if isinstance(program.servers, AsynchronousServers):
        workers = program.servers.workers
        program.servers.pin(dict.fromkeys(range(workers), in_turn(workers, STALE_STEPS)))
    return program


def train(job: Train) -> Run:
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    with loaded(job.folder, job.weights) as program:
        for step, batch in enumerate(job.batches):
            losses.append(float(program.step(dict(batch))))
            if step == 0:
                gradients = program.full_grads()
            program.optimizer.step()
        return Run(tuple(losses), gradients, dict(program.full_state_dict()))


def first_steps(job: FirstSteps) -> Steps:
    losses: list[float] = []
    gradients: list[dict[str, torch.Tensor]] = []
    with loaded(job.folder, job.weights) as program:
        for number, batch in enumerate(job.batches):
            losses.append(float(program.step(dict(batch))))
            if number < job.gradients:
                gradients.append(program.full_grads())
            program.optimizer.zero_grad()
    return Steps(tuple(losses), tuple(gradients))
