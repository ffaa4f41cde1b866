"""A save behind the training's back holds the values of its moment; one that fails is told on every rank, and costs
nothing that was saved before."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import AutoplanError, CheckpointError, DivergedError, InputsError, WeightsError
from autoplan.options import Training
from autoplan.runtime.checkpoint.bytes import TensorFile
from autoplan.runtime.checkpoint.checkpoint import latest_checkpoint
from autoplan.runtime.checkpoint.saving import HostCopies
from autoplan.runtime.checkpoint.store import CheckpointWriter
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLAN = dict(tp=2, dp=2, zero=1, microbatches=2)
TRAINING = Training(precision="fp64", learning_rate=1e-2, compile=False)


def new_program(plan: dict = PLAN) -> Program:
    return Program(tiny.spec(**plan, training=TRAINING), tiny.program(plan.get("pp", 1)))


def started(plan: dict = PLAN) -> Program:
    program = new_program(plan)
    program.load_weights(tiny.reference().state_dict())
    return program


def train(program: Program, batches: list[dict[str, Tensor]]) -> None:
    for batch in batches:
        program.step(batch)
        program.optimizer.step()


@contextmanager
def slow(seconds: float) -> Iterator[None]:
    """Every rank's writing takes that long."""
    real = CheckpointWriter.write_data

    def delayed(*args: object) -> object:
        time.sleep(seconds)
        return real(*args)  # type: ignore[arg-type]

    with patch.object(CheckpointWriter, "write_data", delayed):
        yield


def saved_while_training(rank: int, world: int, folder: str) -> tuple[list[bool], Mapping[str, Tensor]]:
    """What was there after each save began, and the parameters of the first one's moment."""
    batches = list(tiny.batches(3))
    with started() as program, slow(0.5):
        train(program, batches[:1])
        then = dict(program.full_state_dict())
        program.save_checkpoint(Path(folder) / "step-1", asynchronous=True)
        there = [(Path(folder) / "step-1").exists()]
        train(program, batches[1:])
        program.save_checkpoint(Path(folder) / "step-3", asynchronous=True)
        there += [(Path(folder) / "step-1").exists(), (Path(folder) / "step-3").exists()]
    return [*there, (Path(folder) / "step-3").exists()], then


def load(rank: int, world: int, folder: str) -> tuple[Mapping[str, Tensor], int]:
    with new_program() as program:
        program.load_checkpoint(folder)
        return dict(program.full_state_dict()), program.steps


def test_an_asynchronous_save_holds_the_values_of_its_moment(pool: RankPool, tmp_path: Path) -> None:
    found = pool.run(saved_while_training, str(tmp_path))
    assert [there for there, _ in found] == [[False, True, False, True]] * 4
    loaded, steps = pool.run(load, str(tmp_path / "step-1"))[0]
    then = found[0][1]
    assert steps == 1 and loaded.keys() == then.keys()
    assert all(torch.equal(loaded[name], then[name]) for name in then)


def save_what_is_not_finite(rank: int, world: int, folder: str) -> list[str]:
    """What the call of an asynchronous save says, the error of a loss meanwhile, and the next call; one rank's moments
    have a NaN."""
    with started() as program:
        train(program, list(tiny.batches(1)))
        program.save_checkpoint(Path(folder) / "step-1")
        if rank == 1:
            state = next(s for h in program.held if (s := program.optimizer.state[h.updated])["exp_avg"].numel())
            state["exp_avg"].mul_(torch.nan)
        begun = said(lambda: program.save_checkpoint(Path(folder) / "step-2", asynchronous=True), DivergedError)
        remedy = program.updates.diverged("loss=nan", "").remedy
        return [begun, remedy, said(program.saver.wait, DivergedError), said(program.saver.wait, DivergedError)]


def test_an_asynchronous_save_of_what_is_not_finite_is_told_by_the_next_and_comes_to_no_place(
    pool: RankPool, tmp_path: Path
) -> None:
    for begun, remedy, later, again in pool.run(save_what_is_not_finite, str(tmp_path)):
        assert (begun, again) == ("", "")
        assert remedy.startswith(f"go back to {tmp_path / 'step-1'},")
        assert "optimizer state that isn't finite: exp_avg of " in later
        assert f"go back to {tmp_path / 'step-1'}" in later
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1"
    assert {path.name for path in tmp_path.iterdir()} == {"step-1"}


def save_and_diverge(rank: int, world: int, folder: str) -> list[str]:
    """What an error tells to go back to: after a save, while the next is written, and once that has been waited for."""
    with started() as program:
        found = []
        for step, batch in enumerate(tiny.batches(2), 1):
            train(program, [batch])
            program.save_checkpoint(Path(folder) / f"step-{step}", keep=1, asynchronous=True)
            found.append(program.updates.diverged("loss=nan", "").remedy)
            assert latest_checkpoint(folder) == Path(folder) / f"step-{step}"
        program.saver.wait()
        return [*found, program.updates.diverged("loss=nan", "").remedy]


def test_an_error_names_the_checkpoint_of_an_asynchronous_save_once_it_is_there(pool: RankPool, tmp_path: Path) -> None:
    """The one before is removed for it."""
    for remedies in pool.run(save_and_diverge, str(tmp_path)):
        for step, remedy in zip((1, 2, 2), remedies, strict=True):
            assert remedy.startswith(f"go back to {tmp_path / f'step-{step}'},")
    assert {path.name for path in tmp_path.iterdir()} == {"step-2"}


def test_copies_in_the_host_are_their_own_bits_in_memory_that_the_next_save_has_again() -> None:
    tensors = {
        "odd": torch.arange(21, dtype=torch.int16).reshape(3, 7)[:, 1:6],
        "none": torch.empty(0, 3),
        "count": torch.tensor(3.0),
        "complex": torch.randn(5, dtype=torch.complex64).conj(),
        "half": torch.ones(3).half(),
    }
    copies = HostCopies()
    first = copies.of(tensors)
    assert all(torch.equal(first[key], value) and first[key].dtype == value.dtype for key, value in tensors.items())
    before = {key: value.clone() for key, value in tensors.items()}
    tensors["odd"].zero_()
    assert all(torch.equal(first[key], before[key]) for key in before)
    memory = copies.memory.data_ptr()
    assert torch.equal(copies.of(tensors)["odd"], tensors["odd"]) and copies.memory.data_ptr() == memory


def repeated_from_the_start(rank: int, world: int, folder: str) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Parameters after the same steps, by a fresh program and by one that went back to before its first update."""
    batches = list(tiny.batches(2))
    with started() as program:
        program.save_checkpoint(Path(folder) / "step-0")
        train(program, batches)
        fresh = dict(program.full_state_dict())
        program.load_checkpoint(Path(folder) / "step-0")
        train(program, batches)
        return fresh, dict(program.full_state_dict())


def test_a_checkpoint_of_before_the_first_update_brings_no_moments(pool: RankPool, tmp_path: Path) -> None:
    fresh, again = pool.run(repeated_from_the_start, str(tmp_path))[0]
    assert fresh and all(torch.equal(fresh[name], again[name]) for name in fresh)


def load_with_more_moments(rank: int, world: int, folder: str) -> str:
    training = replace(TRAINING, optimizer_options={"amsgrad": True})
    with Program(tiny.spec(**PLAN, training=training), tiny.program(PLAN.get("pp", 1))) as program:
        with pytest.raises(WeightsError, match="it has no max_exp_avg_sq of") as caught:
            program.load_checkpoint(folder)
        return str(caught.value)


@pytest.mark.slow
def test_a_checkpoint_that_lacks_what_the_optimizer_keeps_is_refused(pool: RankPool, tmp_path: Path) -> None:
    pool.run(saved_while_training, str(tmp_path))
    for said in pool.run(load_with_more_moments, str(tmp_path / "step-1")):
        assert "plan with the optimizer_options" in said


class FullDisk(TensorFile):
    """A file that ends after a kilobyte. (A limit on files would be one on the ranks' store, too.)"""

    def write(self, piece: memoryview) -> None:
        if self.position + len(piece) > 1024:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(piece)


@contextmanager
def full_disk(here: bool) -> Iterator[None]:
    with patch("autoplan.runtime.checkpoint.store.TensorFile", FullDisk if here else TensorFile):
        yield


def said(act: Callable[[], object], kind: type[AutoplanError] = CheckpointError) -> str:
    try:
        act()
    except kind as error:
        return str(error)
    return ""


def saved_on_a_full_disk(rank: int, world: int, folder: str, full: int, asynchronous: bool) -> list[str]:
    """What was said while one rank's disk was full, and after."""
    where = Path(folder)
    with started() as program:
        program.save_checkpoint(where / "step-0")
        train(program, list(tiny.batches(1)))
        with full_disk(rank == full):
            told = [said(lambda: program.save_checkpoint(where / "step-1", asynchronous=asynchronous))]
            if asynchronous:
                told.append(said(program.saver.wait))
        dist.barrier()  # the first rank has removed what was written in vain
        left = sorted(path.name for path in where.iterdir() if path.name != ".step.lock")
        train(program, list(tiny.batches(1)))
        program.save_checkpoint(where / "step-2", keep=2)
    return [*told, *left]


@pytest.mark.parametrize(("full", "asynchronous"), sampled(itertools.product((0, 3), (False, True)), [(3, True)]))
def test_a_full_disk_is_told_on_every_rank_and_what_was_saved_stays(
    pool: RankPool, tmp_path: Path, full: int, asynchronous: bool
) -> None:
    for told in pool.run(saved_on_a_full_disk, str(tmp_path), full, asynchronous):
        *before, text, left = told
        assert left == "step-0" and before == [""] * asynchronous
        assert f"step-1: rank {full}: " in text and "what was saved before is whole" in text
        assert "No space left on device" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0", "step-2"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-2"
    assert pool.run(load, str(tmp_path / "step-0"))[0][1] == 0


def failed_behind_the_back(rank: int, world: int, folder: str) -> list[str]:
    with started() as program:
        program.save_checkpoint(Path(folder) / "b")
        with full_disk(rank == 1):
            program.save_checkpoint(Path(folder) / "a", asynchronous=True)
            assert program.saver.running is not None
            while not program.saver.running.future.done():
                time.sleep(0.01)
        told = said(lambda: program.save_checkpoint(Path(folder) / "b"))
        again = said(lambda: program.save_checkpoint(Path(folder) / "b"))
        with full_disk(rank == 1):
            program.save_checkpoint(Path(folder) / "c", asynchronous=True)
            ending = said(program.close)
    return [told, again, ending]


def test_what_failed_in_the_background_is_raised_by_the_next_call(pool: RankPool, tmp_path: Path) -> None:
    for told, again, ending in pool.run(failed_behind_the_back, str(tmp_path)):
        assert "/a: rank 1: " in told and again == "" and "/c: rank 1: " in ending
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


def save_what_cannot_be(rank: int, world: int, folder: str) -> list[str]:
    with started() as program:
        extra = {"position": torch.tensor(3)}
        return [
            said(lambda: program.save_checkpoint(folder, extra=extra), InputsError),
            said(lambda: program.save_checkpoint(folder, keep=1), InputsError),
            said(lambda: program.save_checkpoint(Path(folder) / "file" / "c")),
        ]


def test_what_cannot_be_saved_is_named(pool: RankPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for tensor, keep, place in pool.run(save_what_cannot_be, str(tmp_path)):
        assert tensor.startswith("extra['position'] of Tensor: a checkpoint holds plain values there")
        assert "only folders named step-<number> are counted" in keep
        assert "rank 0: NotADirectoryError" in place


def keep_two(rank: int, world: int, folder: str) -> object:
    with started() as program:
        for step in range(4):
            train(program, list(tiny.batches(1)))
            program.save_checkpoint(
                Path(folder) / f"step-{step + 1}", extra={"position": step + 1}, keep=2, asynchronous=True
            )
    with new_program() as program:
        latest = program.latest_checkpoint(folder if rank == 0 else "what the first rank sees counts")
        assert program.latest_checkpoint(Path(folder) / "none") is None and latest == Path(folder) / "step-4"
        return program.load_checkpoint(latest)


def test_the_last_ones_are_kept_and_give_back_what_they_were_saved_with(pool: RankPool, tmp_path: Path) -> None:
    assert pool.run(keep_two, str(tmp_path)) == [{"position": 4}] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]


def damage(file: Path, how: str) -> None:
    """Cuts a file off; or leaves its size, so that only reading it finds out."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if how == "cut" else bytes(len(content)))


def load_and_keep(rank: int, world: int, folder: str) -> tuple[str, bool]:
    with started() as program:
        before = [h.values.clone() for h in program.held]
        text = said(lambda: program.load_checkpoint(folder), WeightsError)
        return text, all(torch.equal(h.values, b) for h, b in zip(program.held, before, strict=True))


@pytest.mark.parametrize(
    ("file", "how", "expected"),
    [
        ("rank-2.tensors", "cut", "it is damaged: rank-2.tensors has"),
        pytest.param("tensors.json", "cut", "it is damaged: tensors.json has", marks=pytest.mark.slow),
        ("tensors.json", "overwritten", "it is damaged: tensors.json isn't as it was written"),
        pytest.param(
            *("rank-2.tensors", "overwritten", "it is damaged: rank-2.tensors isn't as it was written"),
            marks=pytest.mark.slow,
        ),
        ("state.json", "overwritten", "it is damaged: its state.json isn't a checkpoint's"),
    ],
)
def test_a_damaged_checkpoint_is_told_on_every_rank(
    pool: RankPool, tmp_path: Path, file: str, how: str, expected: str
) -> None:
    pool.run(save_one, str(tmp_path / "step-1"))
    damage(tmp_path / "step-1" / file, how)
    found = pool.run(load_and_keep, str(tmp_path / "step-1"))
    assert all(expected in text for text, _ in found)
    assert all(untouched for _, untouched in found)


def save_one(rank: int, world: int, folder: str) -> None:
    with started() as program:
        program.save_checkpoint(folder)
