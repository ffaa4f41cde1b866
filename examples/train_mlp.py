"""A training loop of one's own around a planned program, for the plain module of mlp.py.

    python examples/train_mlp.py                          plans and writes out/mlp
    torchrun --nproc-per-node 4 examples/train_mlp.py     trains it on four processes
"""

from __future__ import annotations

import os

import torch
from mlp import CLASSES, INPUTS, example_inputs, loss_fn, make_model

import autoplan

FOLDER, ROWS, STEPS = "out/mlp", 64, 100


def plan() -> None:
    """One device may do this, long before there is a cluster."""
    training = autoplan.Training(optimizer="adamw", learning_rate=3e-3, clip_grad_norm=1.0)
    plan = autoplan.parallelize(make_model, "1x4 cpu", example_inputs(ROWS), loss_fn=loss_fn, training=training)
    print(plan.report())
    plan.export(FOLDER)


def train() -> None:
    """On every rank the same code; the program knows what is this rank's part."""
    program = autoplan.load(FOLDER).program()
    program.init_weights(seed=0)
    generator = torch.Generator().manual_seed(0)
    centres = 0.3 * torch.randn(CLASSES, INPUTS, generator=generator)
    for step in range(STEPS):
        target = torch.randint(CLASSES, (ROWS,), generator=generator)
        x = centres[target] + torch.randn(ROWS, INPUTS, generator=generator)
        loss = program.step((x, target))  # the whole batch; each rank takes its rows
        program.optimizer.step()
        program.optimizer.zero_grad()
        if step % 10 == 0 and program.rank == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        plan()
