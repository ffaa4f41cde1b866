"""A checkpoint's folder: written by four ranks, read by one into a plan of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.parallel.sharded_parameter import local
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.corruptions.target import Target
from tests.fixtures import tiny_program as tiny

TRAINING = Training(precision="fp64", learning_rate=1e-2, lr_schedule=LRSchedule("linear", steps=10), compile=False)
EXTRA = {"position": 7, "best": 0.25, "names": ["a", "b"]}


def save(rank: int, world: int, folder: str) -> None:
    """Two steps of the tiny program under ZeRO-3, then a checkpoint."""
    spec = tiny.spec(dp=world, zero=3, training=TRAINING)
    with Program(spec, tiny.program()) as program:
        program.load_weights(tiny.reference().state_dict())
        for batch in tiny.batches(2):
            program.step(batch)
            program.optimizer.step()
        program.save_checkpoint(folder, extra=EXTRA)


class CheckpointReader:
    """One program, on one rank, which loads each folder in turn."""

    def __init__(self, program: Program) -> None:
        self.program, self.extra = program, {}

    def disturb(self) -> None:
        program = self.program
        program.load_weights(tiny.reference(1).state_dict())
        program.optimizer.state.clear()
        program.set_learning_rate(0.5)
        program.steps, self.extra = 0, {}
        torch.manual_seed(5)

    def load(self, folder: Path) -> None:
        self.extra = self.program.load_checkpoint(folder)

    def memory(self) -> object:
        program = self.program
        values = {f"parameter {h.name}": h.values for h in program.held}
        values |= {f"buffer {name}": value for name, value in program.stages.buffers.items()}
        for held in program.held:
            state = program.optimizer.state.get(held.updated, {})
            values |= {f"{name} of {held.name}": v for name, v in state.items() if isinstance(v, Tensor)}
        rates = [group["lr"] for group in program.optimizer.param_groups]
        parts = {name: part.state_dict() for name, part in program.updates.parts.items()}
        digests = {name: digest(local(value)) for name, value in values.items()}
        return digests, rates, parts, program.steps, self.extra


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


class CheckpointTarget(Target):
    """See ``Target``."""

    def make(self, folder: Path) -> None:
        with RankPool(4, timeout_s=120) as pool:
            pool.run(save, str(folder))

    @contextmanager
    def reader(self) -> Iterator[CheckpointReader]:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            with Program(tiny.spec(training=TRAINING), tiny.program()) as program:
                yield CheckpointReader(program)
        finally:
            dist.destroy_process_group()


TARGET = CheckpointTarget("checkpoint")
