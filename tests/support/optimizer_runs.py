"""A part of a training of the tiny program under an optimizer: from a checkpoint, or to one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from autoplan.options import Training
from autoplan.runtime.program import Program
from tests.fixtures import tiny_program as tiny


def part_of_a_run(
    rank: int, world: int, plan: dict, how: Training, folder: str, begin: int, end: int
) -> Mapping[str, Tensor]:
    """Steps ``begin`` to ``end`` of four, from a checkpoint where that isn't the beginning, saved where not the end."""
    spec = tiny.spec(**plan, training=how)
    with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
        program.load_weights(tiny.reference().state_dict())
        if begin:
            program.load_checkpoint(folder)
        for batch in list(tiny.batches(4))[begin:end]:
            program.step(batch)
            program.optimizer.step()
        if end < 4:
            program.save_checkpoint(folder)
        return dict(program.full_state_dict())
