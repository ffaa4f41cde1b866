"""The sharded program on local processes."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from autoplan.export.folder import opened, write_folder
from autoplan.ir.record import PlanRecord
from autoplan.runtime.inference.inference_program import InferenceProgram
from autoplan.runtime.optim.asynchronous.arrivals import in_turn
from autoplan.runtime.optim.asynchronous.asynchronous_servers import AsynchronousServers
from autoplan.runtime.parallel.servers.backups import in_turns
from autoplan.runtime.program import Program
from autoplan.verify.compare import Run
from autoplan.verify.conditioning import OtherOrder
from autoplan.verify.local_ranks import RankPool

Tensors = Mapping[str, torch.Tensor]
Weights = str | Tensors  # a file's path, or the tensors
SECONDS = 300.0  # longest a verification may take


def on_local_ranks(
    record: PlanRecord, batch: Tensors, state: Tensors, function: Callable[..., object], *arguments: object
) -> Any:
    """As ``in_pool``, on as many processes as the plan has ranks."""
    with RankPool(record.chosen.mesh.devices) as pool:
        return in_pool(pool, record, batch, state, function, *arguments)


def in_pool(
    pool: RankPool, record: PlanRecord, batch: Tensors, state: Tensors, function: Callable[..., object], *more: object
) -> Any:
    """Rank 0's result of ``function(rank, world, folder, batch, weights, *more)`` for a folder to which the plan's
    program was exported.

    state  the weights and buffers that it starts from, by the user's names
    """
    if all(b.name in state for b in record.model.buffers):
        persistent = tuple(replace(b, persistent=True) for b in record.model.buffers)
        record = replace(record, model=replace(record.model, buffers=persistent))
    with tempfile.TemporaryDirectory(prefix="autoplan-verify-") as name:
        folder, file = Path(name) / "out", Path(name) / "weights.safetensors"
        write_folder(record, folder, "verification", {})
        weights: Weights = dict(state)
        if not any(value.dtype == torch.complex128 for value in state.values()):  # which safetensors don't hold
            save_file({key: value.contiguous().clone() for key, value in state.items()}, file)
            weights = str(file)
        return pool.run(function, str(folder), batch, weights, *more, timeout_s=SECONDS)[0]


def train_on_rank(
    rank: int, world: int, folder: str, batch: Tensors, weights: Weights, steps: int
) -> Run | None:
    """One rank's part of a training run; the whole tensors on rank 0, None elsewhere."""
    plan = opened(folder)
    program = Program(plan.spec(), plan.module())
    program.load_weights(weights)
    if program.backups:
        program.backups.pinned = [in_turns(n, world, program.backups.first) for n in range(steps)]
    if isinstance(program.servers, AsynchronousServers):
        program.servers.pin(dict.fromkeys(range(world), in_turn(world, steps)))
    losses: list[float] = []
    gradients: Tensors = {}
    for step in range(steps):
        program.optimizer.zero_grad()
        losses.append(float(program.step(dict(batch))))
        if step == 0 or program.spec.continuous:  # there the first batch's come in the steps in which they are due
            gradients = {**(program.full_grads() or {}), **gradients}
        program.optimizer.step()
    parameters = program.full_state_dict() or {}
    return Run(tuple(losses), dict(gradients), dict(parameters)) if rank == 0 else None


def train_in_other_order(
    rank: int, world: int, folder: str, batch: Tensors, weights: Weights, steps: int
) -> Run | None:
    """``train_on_rank``, with each sum taken in the other order."""
    with OtherOrder():
        return train_on_rank(rank, world, folder, batch, weights, steps)


def forward_on_rank(
    rank: int, world: int, folder: str, batch: Tensors, weights: Weights
) -> torch.Tensor | None:
    """One rank's part of a forward; the whole result on rank 0, None elsewhere."""
    plan = opened(folder)
    program = InferenceProgram(plan.spec(), plan.module())
    program.load_weights(weights)
    result = program(dict(batch))
    return result.cpu() if rank == 0 else None
