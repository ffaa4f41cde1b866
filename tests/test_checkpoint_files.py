"""A checkpoint's folder is whole at any moment, under one name or the other; what isn't is never taken for one."""

from __future__ import annotations

import errno
import io
import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplan.errors import InputsError, WeightsError
from autoplan.runtime import checkpoint_files as files
from autoplan.runtime.checkpoint_files import CheckpointState, latest_checkpoint

STATE = CheckpointState(step=2, world=4, optimizer="adamw", learning_rate=1e-3)


def make(folder: Path, state: CheckpointState = STATE, text: str = "data") -> Path:
    """A finished checkpoint, as far as its files tell."""
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_text(text)
    (folder / ".metadata").write_text("names")
    files.write_state(folder, state)
    return folder


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    extra = {"position": 7, "order": [3, 1], "best": (0.1, None), "by epoch": {0: True, 1: float("inf")}, "(tuple)": 1}
    made = make(tmp_path / "c", replace(STATE, states={"scaler": {"scale": 2.0**16}}, extra=extra))
    found = files.read_state(made)
    assert found.extra == extra
    assert found == replace(STATE, states={"scaler": {"scale": 2.0**16}}, extra=extra, files=found.files)
    assert found.files == {"__0_0.distcp": 4, ".metadata": 5}


def test_the_latest_finished_checkpoint_is_found(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    for name in ("step-00000002", "step-00000010.old", "step-00000030.tmp", "step-final"):
        make(tmp_path / name)
    (tmp_path / "step-00000020").mkdir()
    (tmp_path / "step-00000020" / ".metadata").write_text("x")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000010"


def cut(folder: Path) -> None:
    (folder / "__0_0.distcp").write_text("dat")


def lose(folder: Path) -> None:
    (folder / ".metadata").unlink()


def unfinish(folder: Path) -> None:
    (folder / "state.json").unlink()


def halve(folder: Path) -> None:
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text[: len(text) // 2])


def of_another_kind(folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"format": 1, "epoch": 3}))


def of_another_version(folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"format": 99}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "it is damaged: __0_0.distcp has 3 bytes of 4"),
        (lose, "it is damaged: .metadata is missing"),
        (unfinish, "there is no finished checkpoint: it has no state.json"),
        (halve, "its state.json isn't a checkpoint's"),
        (of_another_kind, "its state.json isn't a checkpoint's"),
        (of_another_version, "it has format 99, this version reads 1"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path, damage, said: str) -> None:
    good, bad = make(tmp_path / "step-1"), make(tmp_path / "step-2")
    damage(bad)
    with nullcontext() if damage is unfinish else pytest.warns(UserWarning, match="left out"):
        assert latest_checkpoint(tmp_path) == good
    with pytest.raises(WeightsError, match=said):
        files.complete(bad)


def test_a_folder_whose_checkpoints_are_all_damaged_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    for number in (1, 2):
        cut(make(tmp_path / f"step-{number}"))
    with pytest.warns(UserWarning), pytest.raises(WeightsError, match=r"no checkpoint in it is whole.*step-2"):
        latest_checkpoint(tmp_path)
    unfinish(make(tmp_path / "other" / "step-1"))
    assert latest_checkpoint(tmp_path / "other") is None


class Ended(BaseException):
    """A process that ends here."""


def end_at(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """The process ends in the place of its n-th rename, removal or bringing to the disk."""
    left = [calls]

    def counted(act):
        def run(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Ended
            return act(*args, **kwargs)

        return run

    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    monkeypatch.setattr(files.shutil, "rmtree", counted(files.shutil.rmtree))
    monkeypatch.setattr(files, "sync_folder", counted(files.sync_folder))


@pytest.mark.parametrize("calls", range(12))
def test_whenever_a_process_ends_one_of_two_checkpoints_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The replaced one and the new one, each told by its step; then another save goes through."""
    target = tmp_path / "step-5"
    make(target, replace(STATE, step=1))
    make(tmp_path / "step-4", replace(STATE, step=0))
    with monkeypatch.context() as patch:
        end_at(patch, calls)
        try:
            save(target, 2)
        except Ended:
            assert calls < 9
    latest = latest_checkpoint(tmp_path)
    assert latest == target
    assert files.complete(latest)[1].step in (1, 2)
    save(target, 3)
    assert files.complete(target)[1].step == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-5"]


def save(target: Path, step: int) -> None:
    """What the first rank does in the course of a save."""
    files.recover(target)
    files.clear(files.staging(target))
    make(files.staging(target), replace(STATE, step=step))
    files.put_in_place(target)
    files.prune(target.parent, 2)


def test_the_last_ones_are_kept_and_what_was_never_finished_goes(tmp_path: Path) -> None:
    for step in (1, 2, 3, 9):
        make(tmp_path / f"step-{step:04d}")
    make(tmp_path / "mine")
    (tmp_path / "step-0008").mkdir()
    (tmp_path / "step-0002.tmp").mkdir()
    files.tidy(tmp_path / "step-0009")
    assert not (tmp_path / "step-0002.tmp").exists()
    files.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "step-0003", "step-0008", "step-0009"]


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match="only folders named step-<number> are counted"):
        files.check_keep(tmp_path / "final", 3)
    with pytest.raises(InputsError, match="keep=0"):
        files.check_keep(tmp_path / "step-1", 0)


class FullDisk(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self.tell() + memoryview(data).nbytes > 1024:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.mark.parametrize("elements", [10, 1000, 100_000])
def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(files.io, "FileIO", FullDisk)
    with (
        pytest.raises(OSError, match="No space left on device"),
        files.PatientFiles().create_stream(tmp_path / "tensor", "wb") as stream,
    ):
        torch.save(torch.ones(elements), stream)
        torch.save(torch.ones(elements), stream)
