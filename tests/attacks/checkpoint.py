"""Attacks on the folders of checkpoints: other things in them, jobs that share them, disks of their own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from autoplan.errors import AutoplanError
from autoplan.runtime.checkpoint import lock
from autoplan.runtime.checkpoint.bytes import TensorFile
from autoplan.runtime.checkpoint.state_json import latest_checkpoint, sealed
from tests.attacks.attack import Attack, Lost, Place, Silent, clear, contents, equal, unharmed
from tests.attacks.checkpoints import RANKS, new_program, of, save, save_refused, saved, train


def forgotten_step(place: Place) -> str:
    shutil.copytree(saved(place), place.folder / "run" / "step-1")
    shutil.copytree(place.folder / "step-1", place.folder / "run" / "step-2")
    (place.folder / "run" / "train.log").write_text("mine")
    return save_refused(place, place.folder / "run", "step-1, step-2, train.log", "folder of its own")


def results_beside(place: Place) -> str:
    (saved(place) / "scores.json").write_text("mine")
    return save_refused(place, place.folder / "step-1", "scores.json")


def onto_a_file(place: Place) -> str:
    (place.folder / "step-1").write_text("mine")
    return save_refused(place, place.folder / "step-1", "it is a file")


def through_a_link(place: Place) -> str:
    saved(place).rename(place.folder / "best")
    (place.folder / "step-1").symlink_to(place.folder / "best")
    return save_refused(place, place.folder / "step-1", "symbolic link")


def over_another_run(place: Place) -> str:
    return save_refused(place, saved(place), "a checkpoint of another run")


def go_back(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        for step in range(1, 6):
            train(program)
            program.save_checkpoint(Path(folder) / f"step-{step}")
        program.load_checkpoint(Path(folder) / "step-2")
        train(program)
        program.save_checkpoint(Path(folder) / "step-3", extra={"again": True}, keep=2)


def kept_after_going_back(place: Place) -> str:
    place.pools.of(RANKS).run(go_back, str(place.folder))
    found = sorted(path.name for path in place.folder.iterdir())
    if "step-3" not in found or "step-2" not in found:
        raise Lost(f"left: {found}")
    latest = latest_checkpoint(place.folder)
    return equal(latest is not None and latest.name == "step-3", f"left: {found}; the latest: {latest}")


def save_three(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        for step in (2, 3, 4):
            train(program)
            program.save_checkpoint(Path(folder) / f"step-{step}", keep=1)
            if step == 2 and rank == 0:
                (Path(folder) / "step-2" / "scores.json").write_text("mine")


def prune_beside(place: Place, prepare: Callable[[Path], None]) -> str:
    """Checkpoints of others beside this run's, which keeps one of its own."""
    other, here = place.folder / "other", place.folder / "here"
    shutil.copytree(saved(place), other / "step-1")
    here.mkdir()
    prepare(here)
    before = contents(place.folder)
    place.pools.of(RANKS).run(save_three, str(here))
    unharmed(before, place.folder)
    left = sorted(path.name for path in here.iterdir())
    scores = here / "step-2" / "scores.json"
    if not scores.exists():
        raise Lost("a user's file in a checkpoint's folder")
    return equal("step-4" in left and "step-3" not in left, f"left: {left}")


def prune_through_a_link(place: Place) -> str:
    return prune_beside(place, lambda here: (here / "step-1").symlink_to(place.folder / "other" / "step-1"))


def prune_another_run(place: Place) -> str:
    def copied(here: Path) -> None:
        shutil.copytree(place.folder / "other" / "step-1", here / "step-1")

    return prune_beside(place, copied)


def prune_by_a_crafted_manifest(place: Place) -> str:
    def crafted(here: Path) -> None:
        (here / "step-1").mkdir()
        (here / "step-1" / "removing.json").write_text(sealed({"format": 2, "files": ["../../precious.txt"]}))
        (place.folder / "precious.txt").write_text("mine")

    return prune_beside(place, crafted)


def save_by_rank(rank: int, world: int, folder: str) -> AutoplanError | None:
    return save(rank, world, f"{folder}/of-rank-{rank}")


def other_folder_on_a_rank(place: Place) -> str:
    told = place.pools.of(RANKS).run(save_by_rank, str(place.folder))
    if None in told or any(place.folder.iterdir()):
        raise Silent("it was saved")
    return clear(told[1], ("ranks don't agree on the folder", "of-rank-0 on rank 0", "of-rank-1 on rank 1"))


class OwnDisk(TensorFile):
    """A file on a disk that the first rank doesn't see."""

    def __init__(self, path: Path) -> None:
        elsewhere = path.parent.parent / "disk-of-another-node"
        elsewhere.mkdir(exist_ok=True)
        super().__init__(elsewhere / path.name)


def save_on_own_disk(rank: int, world: int, folder: str) -> AutoplanError | None:
    with patch("autoplan.runtime.checkpoint.store.TensorFile", OwnDisk if rank else TensorFile):
        return save(rank, world, folder)


def disks_of_their_own(place: Place) -> str:
    folder = place.folder / "step-1"
    told = place.pools.of(RANKS).run(save_on_own_disk, str(folder))
    if None in told or folder.exists():
        raise Silent("it was reported as saved")
    return clear(told[0], ("rank-1.tensors", "isn't there", "one folder that all see"))


def save_quickly(rank: int, world: int, folder: str) -> AutoplanError | None:
    with patch.object(lock, "PATIENCE_S", 0.2):
        return save(rank, world, folder)


def another_job_saves_there(place: Place) -> str:
    """A process that holds the folder's lock, as a second training's first rank does."""
    with (place.folder / ".step.lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write(json.dumps({"run": "feedbeef", "host": "node-7", "process": 41}))
        file.flush()
        told = place.pools.of(RANKS).run(save_quickly, str(place.folder / "step-1"))
    if None in told or (place.folder / "step-1").exists():
        raise Silent("two jobs saved into one folder")
    return clear(told[1], ("another run saves there", "run feedbeef, process 41 on node-7"))


def a_killed_job_s_lock(place: Place) -> str:
    child = os.fork()
    if not child:
        with (place.folder / ".step.lock").open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            file.write(json.dumps({"run": "feedbeef", "host": os.uname().nodename, "process": os.getpid()}))
            file.flush()
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    told = place.pools.of(RANKS).run(save_quickly, str(place.folder / "step-1"))
    return equal(told == [None] * RANKS, f"saved after a kill: {told}")


def an_older_save_ended_badly(place: Place) -> str:
    """Half a state.json where the next save is to go: set aside, not removed, and the save goes through."""
    folder = saved(place)
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text[: len(text) // 2])
    before = {Path(name).name: value for name, value in contents(folder).items()}
    told = place.pools.of(RANKS).run(save, str(folder))
    aside = place.folder / "step-1.damaged-1"
    if not aside.is_dir():
        raise Lost("what was damaged is gone")
    unharmed(before, aside)
    return equal(told == [None] * RANKS, "saved; the damaged one is set aside")


def a_folder_named_old(place: Place) -> str:
    """A user's folder under the name that a checkpoint has while it is replaced."""
    (place.folder / "step-1.old").mkdir()
    (place.folder / "step-1.old" / "notes.txt").write_text("mine")
    place.pools.of(RANKS).run(save_twice, str(place.folder / "step-1"))
    kept = [path.read_text() for path in place.folder.rglob("notes.txt")]
    if kept != ["mine"]:
        raise Lost("the user's notes are gone")
    return "equal: the notes are there"


def save_twice(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        program.save_checkpoint(folder)
        program.save_checkpoint(folder)


ATTACKS: tuple[Attack, ...] = (
    of("save_checkpoint('run'), /step-4 forgotten", "step-1, step-2 and train.log removed", forgotten_step),
    of("save over a checkpoint that holds the user's scores.json", "scores.json removed", results_beside),
    of("save onto a file", "the file replaced", onto_a_file),
    of("save onto a symbolic link", "what it leads to replaced", through_a_link),
    of("save over another run's checkpoint", "another run's values gone", over_another_run),
    of("keep=2 after going back from step 5 to 2", "the step just saved removed", kept_after_going_back),
    of("keep=1 beside a link to another run's step-1", "the link followed, its files removed", prune_through_a_link),
    of("keep=1 beside another run's step-1", "another run's checkpoint counted and removed", prune_another_run),
    of("keep=1 beside a manifest that names files elsewhere", "those removed", prune_by_a_crafted_manifest),
    of("folder names that differ by rank", "half a checkpoint in each, reported as saved", other_folder_on_a_rank),
    of("a node with a disk of its own", "shards missing, reported as saved", disks_of_their_own),
    of("two jobs on one folder", "values of two trainings mixed", another_job_saves_there),
    of("a lock that a killed job left", "the restart refused", a_killed_job_s_lock),
    of("save where a damaged checkpoint stands", "it is removed, or training can't go on", an_older_save_ended_badly),
    of("save beside a user's folder step-1.old", "the user's folder removed", a_folder_named_old),
)  # fmt: skip
