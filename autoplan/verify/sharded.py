"""The sharded program on local processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autoplan.export.folder import program_module, program_spec, read_folder
from autoplan.runtime.inference.program import InferenceProgram
from autoplan.runtime.program import Program
from autoplan.verify.compare import Run
from autoplan.verify.local_ranks import RankPool

SECONDS = 300.0  # longest a verification may take


def train_on_rank(
    rank: int, world: int, folder: str, batch: Mapping[str, torch.Tensor], weights: str, steps: int
) -> Run | None:
    """One rank's part of a training run; the whole tensors on rank 0, None elsewhere."""
    program = Program(program_spec(read_folder(folder)), program_module(folder))
    program.load_weights(weights)
    losses: list[float] = []
    gradients: Mapping[str, torch.Tensor] = {}
    for step in range(steps):
        program.optimizer.zero_grad()
        losses.append(float(program.step(dict(batch))))
        if step == 0:
            gradients = program.full_grads() or {}
        program.optimizer.step()
    parameters = program.full_state_dict() or {}
    return Run(tuple(losses), dict(gradients), dict(parameters)) if rank == 0 else None


def train_sharded(
    pool: RankPool, folder: str, batch: Mapping[str, torch.Tensor], weights: str, steps: int
) -> Run:
    """The exported program of ``folder`` on the pool's ranks, from the weights of a safetensors file."""
    results = pool.run(train_on_rank, folder, batch, weights, steps, timeout_s=SECONDS)
    assert isinstance(results[0], Run)
    return results[0]


def forward_on_rank(
    rank: int, world: int, folder: str, batch: Mapping[str, torch.Tensor], weights: str
) -> torch.Tensor | None:
    """One rank's part of a forward; the whole result on rank 0, None elsewhere."""
    program = InferenceProgram(program_spec(read_folder(folder)), program_module(folder))
    program.load_weights(weights)
    result = program(dict(batch))
    return result.cpu() if rank == 0 else None
