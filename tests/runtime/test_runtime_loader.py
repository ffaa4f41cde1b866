"""Training ends cleanly where the data do, on every rank at once, and goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from autoplan.errors import InputsError
from autoplan.options import Training
from autoplan.runtime.data.loader import Batches
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny

PLAN = dict(dp=4, zero=1)


def rows(count: int, seed: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, tiny.SEQ)
    return TensorDataset(*(torch.randint(0, tiny.VOCAB, shape, generator=generator) for _ in range(2)))


def new_program() -> Program:
    program = Program(tiny.spec(**PLAN, training=Training(precision="fp64", compile=False)), tiny.program(1))
    program.load_weights(tiny.reference().state_dict())
    return program


def train_to_the_end(program: Program, loader: object, folder: Path, position: int = 0) -> tuple[int, str]:
    batches = Batches(program.spec, loader, position)  # type: ignore[arg-type]
    for batch in batches:
        program.step(batch)
        program.optimizer.step()
    program.save_checkpoint(folder, extra={"position": batches.position})
    return batches.position, batches.ended


def in_two_goes(rank: int, world: int, folder: str) -> tuple[list, bool]:
    """Whole batches of a set that ends within one; a run that stops after two of four and goes on."""
    told, where = [], Path(folder)
    with new_program() as program:
        loader = DataLoader(rows(4 * tiny.BATCH + 3), batch_size=tiny.BATCH)
        told.append(train_to_the_end(program, loader, where / "whole"))
        whole = dict(program.full_state_dict())
    with new_program() as program:
        first = DataLoader(Subset(loader.dataset, range(2 * tiny.BATCH)), batch_size=tiny.BATCH)
        told.append(train_to_the_end(program, first, where / "half"))
    with new_program() as program:
        position = program.load_checkpoint(where / "half")["position"]
        assert isinstance(position, int)
        told.append(train_to_the_end(program, loader, where / "rest", position))
        found = dict(program.full_state_dict())
        return told, all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_data_that_end_within_a_batch_end_training_with_a_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    for told, equal in pool.run(in_two_goes, str(tmp_path)):
        cut = "batch 5 has 3 rows of 8, and was left out: a program without a plan is for its one size"
        cut += f". give a batch of 8 rows of {tiny.SEQ} tokens"
        assert told == [(4, cut), (2, "the data ended after 2 batches"), (4, cut)]
        assert equal


def of_unequal_ranks(rank: int, world: int, folder: str) -> tuple[int, str]:
    """Each rank its own rows, the third has fewer batches."""
    own = tiny.BATCH // world
    with new_program() as program:
        loader = DataLoader(rows(own * (3 if rank == 2 else 5), seed=rank), batch_size=own)
        return train_to_the_end(program, loader, Path(folder) / "c")


def test_where_one_rank_s_data_end_all_end(pool: RankPool, tmp_path: Path) -> None:
    found = pool.run(of_unequal_ranks, str(tmp_path))
    assert [position for position, _ in found] == [3] * 4
    assert found[2][1] == "the data ended after 3 batches"
    assert "on another rank" in found[0][1]


def in_epochs(rank: int, world: int) -> list[tuple[int, str]]:
    """Positions in three passes over two batches: one that is broken off and gone on with, and one whole; of an
    iterator, how many batches are left after one."""
    given, told = list(tiny.batches(2)), []
    with new_program() as program:
        batches = Batches(program.spec, given)
        for _ in batches:
            told.append((batches.position, batches.ended))
            break
        for _ in range(2):
            for _ in batches:
                told.append((batches.position, batches.ended))
            told.append((batches.position, batches.ended))
        once = Batches(program.spec, iter(given))
        for _ in once:
            break
        told.append((len(list(once)), once.ended))
        try:
            list(once)
        except InputsError as error:
            told.append((-1, error.cause))
    return told


def test_another_pass_is_another_epoch(pool: RankPool) -> None:
    ended, nothing = "the data ended after 2 batches", "it gives no batch for a step: the data ended after 0 batches"
    told = [(1, ""), (2, ""), (2, ended), (1, ""), (2, ""), (2, ended), (1, ended), (-1, nothing)]
    assert pool.run(in_epochs) == [told] * 4


def refused(rank: int, world: int) -> list[str]:
    said = []
    with new_program() as program:
        loader = DataLoader(rows(tiny.BATCH), batch_size=tiny.BATCH)
        short = [tuple(torch.zeros(5, tiny.SEQ, dtype=torch.int64) for _ in range(2))]
        for batches in (Batches(program.spec, loader, 2), Batches(program.spec, []), Batches(program.spec, short)):
            try:
                for batch in batches:
                    program.step(batch)
            except InputsError as error:
                said.append(str(error))
    return said


def test_data_that_are_too_few_are_named(pool: RankPool) -> None:
    for too_few, none, short in pool.run(refused):
        assert "position=2: the loader ends after 1 batches" in too_few
        assert "the loader: it gives no batch for a step: the data ended after 0 batches" in none
        assert "tokens of shape (5, 3): the plan is for a batch of (8, 3)" in short


def test_batches_may_be_named(pool: RankPool, tmp_path: Path) -> None:
    found = pool.run(named_batches, str(tmp_path))
    assert found == [(2, "the data ended after 2 batches")] * 4


def named_batches(rank: int, world: int, folder: str) -> tuple[int, str]:
    given: list[dict[str, Tensor]] = list(tiny.batches(2))
    with new_program() as program:
        return train_to_the_end(program, given, Path(folder) / "c")
