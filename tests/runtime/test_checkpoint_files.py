"""A checkpoint's folder is whole at any moment, under one name or the other; what isn't is never taken for one; and
nothing but a checkpoint's own files is ever removed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.errors import CheckpointError, InputsError, WeightsError
from autoplan.runtime.checkpoint import folders, plain_values, state_json
from autoplan.runtime.checkpoint.index import read_index
from autoplan.runtime.checkpoint.state_json import latest_checkpoint
from autoplan.runtime.checkpoint.store import check_chunks
from tests.attacks.attack import contents
from tests.support.checkpoints import RUN, STATE, fill, make


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    extra = {"position": 7, "order": [3, 1], "best": (0.1, None), "by epoch": {0: True, 1: float("inf")}, "(tuple)": 1}
    state = replace(STATE, states={"scaler": {"scale": 2.0**16}}, extra=extra, groups=[({"lr": 0.1}, None)])
    found = state_json.read_state(make(tmp_path / "c", state))
    assert found.extra == extra
    assert found == replace(state, files=found.files, tensors=found.tensors)
    assert found.files.keys() == {"rank-0.tensors", "tensors.json"}


def test_the_latest_finished_checkpoint_is_found(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    for name in ("step-00000002", "step-00000010.old", "step-00000030.0123abcd.tmp", "step-final", "step-²"):
        make(tmp_path / name)
    (tmp_path / "step-00000020").mkdir()
    (tmp_path / "step-00000020" / "tensors.json").write_text("x")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000010"


def test_the_latest_is_the_one_that_was_written_last(tmp_path: Path) -> None:
    for step, written_s in ((1, 10.0), (2, 20.0), (3, 60.0), (4, 40.0), (5, 50.0)):
        make(tmp_path / f"step-{step}", replace(STATE, step=step, written_s=written_s))
    assert latest_checkpoint(tmp_path) == tmp_path / "step-3"


def cut(folder: Path) -> None:
    (folder / "rank-0.tensors").write_text("dat")


def lose(folder: Path) -> None:
    (folder / "tensors.json").unlink()


def unfinish(folder: Path) -> None:
    (folder / "state.json").unlink()


def halve(folder: Path) -> None:
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text[: len(text) // 2])


def of_another_kind(folder: Path) -> None:
    (folder / "state.json").write_text(state_json.sealed({"format": 2, "epoch": 3}))


def of_another_version(folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"format": 1, "files": {"rank-0.tensors": 16, "tensors.json": 9}}))


def flip(folder: Path) -> None:
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text.replace('"learning_rate": 0.001', '"learning_rate": 0.003'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "it is damaged: rank-0.tensors has 3 bytes of 16"),
        (lose, "it is damaged: tensors.json is missing"),
        (unfinish, "there is no finished checkpoint: it has no state.json"),
        (halve, "its state.json isn't a checkpoint's"),
        (of_another_kind, "its state.json isn't a checkpoint's"),
        (of_another_version, "it has format 1, this version reads 2"),
        (flip, "its checksum differs"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path, damage, said: str) -> None:
    good, bad = make(tmp_path / "step-1"), make(tmp_path / "step-2")
    damage(bad)
    with nullcontext() if damage is unfinish else pytest.warns(UserWarning, match="left out"):
        assert latest_checkpoint(tmp_path) == good
    with pytest.raises(WeightsError, match=said):
        state_json.complete(bad)


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

    def counted(act: Callable) -> Callable:
        def run(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Ended
            return act(*args, **kwargs)

        return run

    for name in ("rename", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(folders, "sync_folder", counted(folders.sync_folder))
    monkeypatch.setattr(folders, "write_synced", counted(folders.write_synced))


@pytest.mark.parametrize("calls", range(20))
def test_whenever_a_process_ends_one_of_two_checkpoints_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The replaced one and the new one, each told by its step; then another save goes through."""
    target = tmp_path / "step-5"
    make(tmp_path / "step-4", replace(STATE, step=0, id="0"))
    make(target, replace(STATE, step=1, id="1", parent="0", written_s=1.0))
    with monkeypatch.context() as patch:
        end_at(patch, calls)
        try:
            save(target, 2)
        except Ended:
            assert calls < 19
    latest = latest_checkpoint(tmp_path)
    assert latest == target
    assert state_json.complete(latest)[1].step in (1, 2)
    save(target, 3)
    assert state_json.complete(target)[1].step == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-5"]


def save(target: Path, step: int) -> None:
    """What the first rank does in the course of a save."""
    folders.tidy(target)
    folder = folders.begin(target, replace(RUN, parent="0"), world=1)
    fill(folder, replace(STATE, step=step, id=str(step), parent="0", written_s=float(step)))
    (folder / folders.WRITING).unlink()
    folders.put_in_place(folder, target)
    folders.prune(target, 2, RUN)


def saved(parent: Path, step: int, of: str | None = None, run: str = RUN.run, root: str = RUN.root) -> Path:
    """A checkpoint that a run has saved: known by its step and run, reached from the one whose id is given."""
    written_s = float(len(list(parent.iterdir())))
    state = replace(STATE, step=step, id=f"{run[:1]}{step}", parent=of, run=run, root=root, written_s=written_s)
    return make(parent / f"step-{step}", state)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_ones_are_kept_and_what_was_never_finished_goes(tmp_path: Path) -> None:
    for step, parent in ((1, None), (2, "a1"), (3, "a2"), (9, "a3")):
        saved(tmp_path, step, parent)
    make(tmp_path / "mine")
    (tmp_path / "step-8").mkdir()
    folders.begin(tmp_path / "step-2", replace(RUN, parent="a9"), 1)
    folders.tidy(tmp_path / "step-9")
    folders.prune(tmp_path / "step-9", 2, RUN)
    assert names(tmp_path) == ["mine", "step-3", "step-8", "step-9"]


def test_after_going_back_the_newest_and_what_it_was_reached_from_are_kept(tmp_path: Path) -> None:
    for step, parent in ((1, None), (2, "a1"), (4, "a2"), (5, "a4")):
        saved(tmp_path, step, parent)
    folders.prune(saved(tmp_path, 3, "a2"), 2, RUN)
    assert names(tmp_path) == ["step-2", "step-3"]


def test_what_an_earlier_run_went_on_to_otherwise_is_left_alone(tmp_path: Path) -> None:
    for step, parent in ((1, None), (2, "b1"), (5, "b2")):
        saved(tmp_path, step, parent, run="b" * 32)
    saved(tmp_path, 7, None, run="c" * 32, root="c" * 32)
    folders.prune(saved(tmp_path, 3, "b2"), 2, RUN)
    assert names(tmp_path) == ["step-2", "step-3", "step-5", "step-7"]


def test_pruning_follows_no_symbolic_link_and_leaves_a_user_s_files(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir(), elsewhere.mkdir()
    (here / "step-1").symlink_to(saved(elsewhere, 1))
    (saved(here, 2, "a1") / "scores.txt").write_text("mine")
    saved(here, 3, "a2")
    folders.prune(saved(here, 4, "a3"), 2, RUN)
    assert names(here) == ["step-1", "step-2", "step-3", "step-4"]
    assert names(here / "step-2") == ["scores.txt"]
    assert state_json.finished(elsewhere / "step-1")


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match="only folders named step-<number> are counted"):
        state_json.check_keep(tmp_path / "final", 3)
    with pytest.raises(InputsError, match="keep=0"):
        state_json.check_keep(tmp_path / "step-1", 0)


def foreign_file(target: Path) -> str:
    (make(target) / "train.log").write_text("mine")
    return "it holds what is no checkpoint's: train.log"


def checkpoints_in_it(target: Path) -> str:
    make(target / "step-1"), make(target / "step-2")
    (target / "train.log").write_text("mine")
    return "it holds what is no checkpoint's: step-1, step-2, train.log"


def somebody_s_link(target: Path) -> str:
    target.symlink_to(make(target.with_name("other")))
    return "it is a symbolic link"


def a_file(target: Path) -> str:
    target.write_text("mine")
    return "it is a file"


def another_run_s(target: Path) -> str:
    make(target, replace(STATE, root="b" * 32, run="b" * 32))
    return "it holds a checkpoint of another run, of step 2, which this one didn't begin from"


def an_older_version_s(target: Path) -> str:
    of_another_version(make(target))
    return "it holds another checkpoint: it has format 1"


@pytest.mark.parametrize(
    "there", [foreign_file, checkpoints_in_it, somebody_s_link, a_file, another_run_s, an_older_version_s]
)
def test_what_is_not_this_run_s_is_never_replaced(tmp_path: Path, there: Callable[[Path], str]) -> None:
    expected = there(tmp_path / "c")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=expected):
        folders.begin(tmp_path / "c", RUN, world=1)
    assert contents(tmp_path) == before


def test_what_is_damaged_or_went_on_otherwise_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    halve(make(tmp_path / "step-1"))
    saved(tmp_path, 2, None, run="b" * 32)
    for step in (1, 2):
        folders.put_in_place(fill(folders.begin(tmp_path / f"step-{step}", RUN, 1)), tmp_path / f"step-{step}")
    assert names(tmp_path) == ["step-1", "step-1.damaged-1", "step-2", "step-2.bbbbbbbb-1"]
    assert "is set aside as step-1.damaged-1" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest_checkpoint(tmp_path) == tmp_path / "step-2"


def test_a_user_s_folder_beside_it_named_old_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c.old").mkdir()
    (tmp_path / "c.old" / "notes.txt").write_text("mine")
    make(tmp_path / "c")
    folders.put_in_place(fill(folders.begin(tmp_path / "c", RUN, 1)), tmp_path / "c")
    assert (tmp_path / "c.old.kept-1" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["../secret", "a/b", "..", ".", ""])
def test_a_manifest_names_files_of_its_own_folder_alone(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / "c")
    (tmp_path / "secret").write_text("mine")
    data = state_json.unsealed(folder / "state.json")
    data["files"][name] = 4  # type: ignore[index]
    (folder / "state.json").write_text(state_json.sealed(data))
    with pytest.raises(WeightsError, match="isn't a file's name"):
        state_json.read_state(folder)
    folders.clear(folder)
    assert (tmp_path / "secret").exists()


def test_every_byte_of_a_checkpoint_has_a_checksum(tmp_path: Path) -> None:
    folder = make(tmp_path / "c")
    state = state_json.read_state(folder)
    for name in ("rank-0.tensors", "tensors.json", "state.json"):
        whole = (folder / name).read_bytes()
        for place in range(len(whole)):
            if whole[place : place + 1].isspace():
                continue  # between two values of JSON
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(WeightsError, match=r"damaged|has format"):
                again = state_json.read_state(folder)
                check_chunks(folder, read_index(folder, again.tensors, again.files))
        (folder / name).write_bytes(whole)
    check_chunks(folder, read_index(folder, state.tensors, state.files))


def test_values_that_json_cannot_hold_are_named() -> None:
    endless: list = []
    endless.append(endless)
    for value in ({"a": endless}, {"a": 10**5000}, {"a": {1, 2}}):
        with pytest.raises(InputsError, match="extra"):
            plain_values.frozen(value, "extra")
