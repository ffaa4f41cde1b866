"""Ranks that disagree: about a batch, its rows, or how often gradients are added up."""

from __future__ import annotations

import torch
from torch import Tensor

from autoplan.runtime.program import Program
from tests.fixtures import tiny_program as tiny

PLANS = {
    "dp2 tp2": dict(dp=2, tp=2),
    "zero3": dict(dp=4, zero=3),
    "pp2 dp2": dict(pp=2, dp=2, microbatches=2, pipeline_schedule="1f1b"),
}
Batch = dict[str, Tensor]


def three() -> list[Batch]:
    return list(tiny.batches(3))


def share(program: Program, batch: Batch, ways: int | None = None) -> Batch:
    """A data rank's rows of a batch, of all its microbatches."""
    axis, m = program.axes["dp"], program.spec.microbatches
    ways = ways or axis.size
    return {n: torch.cat([c.chunk(ways)[axis.rank % ways] for c in whole.chunk(m)]) for n, whole in batch.items()}


def behind(program: Program, rank: int) -> object:
    return program.step(three()[0 if rank == 3 else 1])


def shuffled(program: Program, rank: int) -> object:
    order = torch.arange(tiny.BATCH).flip(0) if rank == 2 else torch.arange(tiny.BATCH)
    return program.step({name: value[order] for name, value in three()[0].items()})


def other_labels(program: Program, rank: int) -> object:
    batch = three()[0]
    batch["labels"][-1, -1] += rank == 1
    return program.step(batch)


def peers_apart(program: Program, rank: int) -> object:
    """One of two ranks that share rows has the next batch's."""
    return program.step(share(program, three()[1 if rank == 1 else 0]))


def short(program: Program, rank: int) -> object:
    """The last batch of a set, too short, the same on all ranks: as many rows as a data rank has of a whole one."""
    return program.step({name: value[: tiny.BATCH // program.axes["dp"].size] for name, value in three()[0].items()})


def half_of_the_ranks(program: Program, rank: int) -> object:
    """A sampler that knows of two data ranks where there are four."""
    assert program.axes["dp"].size == 4
    batch = {name: value[: tiny.BATCH // 2] for name, value in three()[0].items()}
    return program.step(share(program, batch, ways=2))


def mixed(program: Program, rank: int) -> object:
    return program.step(three()[0] if rank < 2 else share(program, three()[0]))


def mixed_inputs(program: Program, rank: int) -> object:
    batch = three()[0]
    return program.step({"tokens": batch["tokens"], "labels": share(program, batch)["labels"]})


def one_rank_s_shape(program: Program, rank: int) -> object:
    batch = three()[0]
    return program.step({name: value[:5] for name, value in batch.items()} if rank == 1 else batch)


def one_rank_s_type(program: Program, rank: int) -> object:
    return program.step({"tokens": "none"} if rank == 2 else three()[0])  # type: ignore[dict-item]


def another_step(program: Program, rank: int) -> object:
    program.step(three()[0])
    if rank != 1:
        program.steps += 1  # as an update of that rank alone would
    program.gradients.stepped()
    return program.step(three()[1])


def some_accumulate(program: Program, rank: int) -> object:
    return program.step(three()[0], accumulate=rank == 0)


def some_dropped(program: Program, rank: int) -> object:
    program.step(three()[0])
    if rank == 2:
        program.optimizer.zero_grad()
    return program.step(three()[1], accumulate=True)


def said_whole(program: Program, rank: int) -> object:
    return program.step(share(program, three()[0]), rows="whole")


def saved_apart(program: Program, rank: int) -> object:
    return program.save_weights("nowhere", trained_only=rank > 1)


def agreeing(rank: int, world: int) -> list[float]:
    """Whole batches, own rows, and rows that are equal and said to be own."""
    with Program(tiny.spec(dp=2, tp=2, microbatches=2), tiny.program(1)) as program:
        program.load_weights(tiny.reference().state_dict())
        batch, losses = three()[0], []
        equal = {name: value[-1:].expand(4, -1) for name, value in batch.items()}
        for given, rows in ((batch, None), (share(program, batch), None), (batch, "whole"), (equal, "own")):
            losses.append(program.step(given, rows=rows).item())  # type: ignore[arg-type]
            program.optimizer.zero_grad()
        whole = {name: value[-1:].expand(8, -1) for name, value in batch.items()}
        return [*losses, program.step(whole).item()]
