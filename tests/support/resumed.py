"""Trainings that stop at a checkpoint and go on, and the same without the stop: what each rank runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import autoplan
from autoplan.runtime.program import Program
from tests.support import zoo

MODEL, STEPS, STOP = "gpt2", 4, 2


@dataclass(frozen=True)
class Trained:
    """Losses of the steps that were taken, and the state after them."""

    losses: tuple[float, ...]
    state: dict[str, Tensor]


def train(program: Program, first: int, last: int) -> tuple[float, ...]:
    """Steps [first, last), each on a batch of its own."""
    losses = []
    for step in range(first, last):
        batch = zoo.batch_of(MODEL, step)
        losses.append(float(program.step(batch)))
        program.optimizer.step()
    return tuple(losses)


def unbroken(rank: int, world: int, folder: str) -> Trained:
    program = autoplan.load(folder).program()
    program.load_weights(f"{folder}/weights.safetensors")
    return Trained(train(program, 0, STEPS), dict(program.full_state_dict()))


def until(rank: int, world: int, folder: str, checkpoint: str) -> None:
    program = autoplan.load(folder).program()
    program.load_weights(f"{folder}/weights.safetensors")
    train(program, 0, STOP)
    program.save_checkpoint(checkpoint)


def onwards(rank: int, world: int, folder: str, checkpoint: str) -> Trained:
    """Whatever was drawn in between: the process is another one."""
    torch.manual_seed(1000 + rank)
    program = autoplan.load(folder).program()
    program.load_checkpoint(checkpoint)
    return Trained(train(program, STOP, STEPS), dict(program.full_state_dict()))
