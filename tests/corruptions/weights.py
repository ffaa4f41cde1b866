"""A folder of weights: written by four ranks into several files, read by one into a plan of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from autoplan.options import Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.corruptions.checkpoint import digest
from tests.corruptions.target import Target
from tests.fixtures import tiny_program as tiny

TRAINING = Training(precision="fp64", compile=False)


def save(rank: int, world: int, folder: str) -> None:
    with Program(tiny.spec(dp=world, zero=3, training=TRAINING), tiny.program()) as program:
        program.load_weights(tiny.reference().state_dict())
        program.save_weights(folder, max_file_bytes=500)


class WeightsReader:
    """One program, on one rank, which loads each folder in turn."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def disturb(self) -> None:
        self.program.load_weights(tiny.reference(1).state_dict())

    def load(self, folder: Path) -> None:
        self.program.load_weights(folder)

    def memory(self) -> object:
        values = {h.name: h.values for h in self.program.held} | dict(self.program.stages.buffers)
        return {name: digest(value) for name, value in values.items()}


class WeightsTarget(Target):
    """See ``Target``."""

    def make(self, folder: Path) -> None:
        with RankPool(4, timeout_s=120) as pool:
            pool.run(save, str(folder))

    @contextmanager
    def reader(self) -> Iterator[WeightsReader]:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            with Program(tiny.spec(training=TRAINING), tiny.program()) as program:
                yield WeightsReader(program)
        finally:
            dist.destroy_process_group()


TARGET = WeightsTarget("weights")
