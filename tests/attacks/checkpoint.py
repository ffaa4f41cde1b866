"""Attacks on checkpoints: folders that hold other things, disks that lose or change bits, jobs that share a folder."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import AutoplanError
from autoplan.options import LRSchedule, Training
from autoplan.runtime.checkpoint import lock
from autoplan.runtime.checkpoint.bytes import TensorFile
from autoplan.runtime.checkpoint.files import latest_checkpoint, sealed, unsealed
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, clear, contents, equal, refused_command, unharmed
from tests.corruptions.checkpoint import CheckpointReader
from tests.corruptions.damage import Intruder
from tests.fixtures import tiny_program as tiny

RANKS = 2
TRAINING = Training(precision="fp64", learning_rate=1e-2, compile=False)
ENDED = LRSchedule("linear", steps=2)


def new_program(training: Training = TRAINING) -> Program:
    program = Program(tiny.spec(dp=RANKS, zero=3, training=training), tiny.program())
    program.load_weights(tiny.reference().state_dict())
    return program


def train(program: Program, steps: int = 1) -> None:
    for batch in tiny.batches(steps):
        program.step(batch)
        program.optimizer.step()


def caught(act: Callable[[], object]) -> AutoplanError | None:
    try:
        act()
    except AutoplanError as error:
        return error
    return None


def save(rank: int, world: int, folder: str, steps: int = 1, training: Training = TRAINING) -> AutoplanError | None:
    """A few steps, then a checkpoint; what was refused."""
    with new_program(training) as program:
        train(program, steps)
        return caught(lambda: program.save_checkpoint(folder, extra={"position": 7}))


def load(rank: int, world: int, folder: str, training: Training = TRAINING) -> tuple[AutoplanError | None, bool, str]:
    """What was refused, whether memory is as it was, and what was said on stderr."""
    said = io.StringIO()
    with new_program(training) as program, contextlib.redirect_stderr(said):
        before = CheckpointReader(program).memory()
        error = caught(lambda: program.load_checkpoint(folder))
        return error, CheckpointReader(program).memory() == before, said.getvalue()


def saved(place: Place, steps: int = 1, training: Training = TRAINING) -> Path:
    folder = place.folder / "step-1"
    told = place.pools.of(RANKS).run(save, str(folder), steps, training)
    assert told == [None] * RANKS, told
    return folder


def save_refused(place: Place, folder: Path, *words: str) -> str:
    """The error's text, where every rank refuses and no file is touched."""
    before = contents(place.folder)
    told = place.pools.of(RANKS).run(save, str(folder))
    unharmed(before, place.folder)
    if None in told:
        raise Silent("it was saved")
    return clear(told[0], words)


def load_refused(place: Place, folder: Path, *words: str, training: Training = TRAINING) -> str:
    """The same of a load, where nothing in memory has changed."""
    told = place.pools.of(RANKS).run(load, str(folder), training)
    for error, kept, _ in told:
        if error is None:
            raise Silent("it was loaded")
        if not kept:
            raise Lost(f"memory changed before the error: {error}")
    return clear(told[0][0], words)


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


def load_by_rank(rank: int, world: int, folders: list[str]) -> tuple[AutoplanError | None, bool, str]:
    return load(rank, world, folders[rank])


def other_checkpoint_on_a_rank(place: Place) -> str:
    one = saved(place)
    shutil.move(one, place.folder / "one")
    two = saved(place, steps=2)
    found = place.pools.of(RANKS).run(load_by_rank, [str(place.folder / "one"), str(two)])
    if any(error is None or not kept for error, kept, _ in found):
        raise Silent("ranks loaded different checkpoints")
    return clear(found[1][0], ("rank 0 sees a checkpoint of step 1", "rank 1 another, of step 2"))


def flip(file: Path, place: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def a_shard_gone(place: Place) -> str:
    (saved(place) / "rank-1.tensors").unlink()
    return load_refused(place, place.folder / "step-1", "rank-1.tensors is missing")


def a_bit_of_a_shard(place: Place) -> str:
    flip(saved(place) / "rank-1.tensors", 40, 3)
    return load_refused(place, place.folder / "step-1", "rank-1.tensors isn't as it was written")


def a_bit_that_no_rank_needs(place: Place) -> str:
    folder = saved(place)
    index = json.loads((folder / "tensors.json").read_text())
    [[_, start, *_]] = index["tensors"]["rng/1"][2]
    flip(folder / "rank-1.tensors", start)
    return load_refused(place, folder, "rank-1.tensors isn't as it was written", "rng/1")


def a_bit_of_the_index(place: Place) -> str:
    flip(saved(place) / "tensors.json", 300, 1)
    return load_refused(place, place.folder / "step-1", "tensors.json isn't as it was written")


def edited_state(place: Place, name: str, value: object) -> str:
    """state.json says something else, its checksum as before."""
    folder = saved(place)
    data = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**data, name: value}))
    return load_refused(place, folder, "state.json isn't a checkpoint's", "checksum differs")


def shards_swapped(place: Place) -> str:
    folder = saved(place)
    one, other = folder / "rank-0.tensors", folder / "rank-1.tensors"
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return load_refused(place, folder, "it is damaged: rank-0.tensors has")


def state_of_another(place: Place) -> str:
    folder = saved(place)
    shutil.move(folder, place.folder / "one")
    shutil.copy(saved(place, steps=2) / "state.json", place.folder / "one" / "state.json")
    return load_refused(place, place.folder / "one", "damaged")


def pickled(place: Place, name: str) -> str:
    """A file whose unpickling leaves a trace, under a name that a reader may open."""
    folder, trace = saved(place), place.folder / "code-ran"
    (folder / name).write_bytes(pickle.dumps(Intruder(trace)))
    error, _, _ = place.pools.of(RANKS).run(load, str(folder))[0]
    if trace.exists():
        raise Silent("code in the checkpoint ran")
    return "not read" if error is None else clear(error, ("damaged",))


def older_format(place: Place) -> str:
    folder = saved(place)
    data = unsealed(folder / "state.json")
    (folder / "state.json").write_text(json.dumps({**data, "format": 1}))
    return load_refused(place, folder, "it has format 1, this version reads 2", "save_weights there")


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


def change_extra(rank: int, world: int, folder: str) -> Mapping[str, object]:
    extra: dict[str, list[int]] = {"order": [1, 2]}
    with new_program() as program:
        program.save_checkpoint(folder, extra=extra, asynchronous=True)
        extra["order"].append(3)
        program.saver.wait()
        return program.load_checkpoint(folder)


def extra_changed_later(place: Place) -> str:
    found = place.pools.of(RANKS).run(change_extra, str(place.folder / "step-1"))[0]
    return equal(found == {"order": [1, 2]}, f"extra is {found}")


def save_extra(rank: int, world: int, folder: str, kind: str) -> AutoplanError | None:
    endless: list = []
    endless.append(endless)
    extra = {"by rank": rank, "endless": endless, "tensor": torch.ones(1)}[kind]
    with new_program() as program:
        return caught(lambda: program.save_checkpoint(folder, extra={"position": extra}))


def extra_refused(place: Place, kind: str, *words: str) -> str:
    told = place.pools.of(RANKS).run(save_extra, str(place.folder / "step-1"), kind)
    if None in told or any(place.folder.iterdir()):
        raise Silent("it was saved")
    return clear(told[1], words)


def save_nan_moment(rank: int, world: int, folder: str) -> AutoplanError | None:
    with new_program() as program:
        train(program)
        if rank == 1:
            state = next(s for h in program.held if (s := program.optimizer.state[h.updated])["exp_avg_sq"].numel())
            state["exp_avg_sq"].mul_(float("nan"))
        return caught(lambda: program.save_checkpoint(folder))


def moment_not_finite(place: Place) -> str:
    told = place.pools.of(RANKS).run(save_nan_moment, str(place.folder / "step-1"))
    if None in told or (place.folder / "step-1").exists():
        raise Silent("a NaN was saved")
    return clear(told[1], ("optimizer state that isn't finite", "exp_avg_sq"))


def load_and_go_on(rank: int, world: int, folder: str, training: Training) -> tuple[dict[str, Tensor], str, set[str]]:
    """After a load and a step in another precision: parameters, what was said, the dtypes of moments."""
    said = io.StringIO()
    with new_program(training) as program, contextlib.redirect_stderr(said):
        program.load_checkpoint(folder)
        found = program.full_state_dict()
        for held in program.held:  # the tiny program computes in float64 alone: an update is enough
            held.parameter.grad = torch.ones_like(held.parameter)
        program.optimizer.step()
        moments = {str(program.optimizer.state[h.updated]["exp_avg"].dtype) for h in program.held}
    return found, said.getvalue(), moments


def another_precision(place: Place) -> str:
    folder, single = saved(place), replace(TRAINING, precision="fp32")
    wanted, _, _ = place.pools.of(RANKS).run(load_and_go_on, str(folder), TRAINING)[0]
    found, said, moments = place.pools.of(RANKS).run(load_and_go_on, str(folder), single)[0]
    alike = all(torch.equal(found[name], wanted[name].to(found[name].dtype)) for name in wanted)
    return equal(alike and "converted" in said and moments == {"torch.float32"}, f"{said.strip()[-90:]}; {moments}")


def schedule_has_ended(place: Place) -> str:
    folder = saved(place, steps=2, training=replace(TRAINING, lr_schedule=ENDED))
    return load_refused(place, folder, "has ended at a learning rate of 0", "the plan has none")


def told_at_load(place: Place, folder: Path, training: Training, *words: str) -> str:
    error, _, said = place.pools.of(RANKS).run(load, str(folder), training)[0]
    if error is not None or any(word not in said for word in words):
        raise Silent(f"it was loaded, and said: {error or said!r}")
    return said.strip()


def another_schedule(place: Place) -> str:
    folder = saved(place, training=replace(TRAINING, lr_schedule=ENDED))
    longer = replace(TRAINING, lr_schedule=LRSchedule("cosine", steps=50))
    return told_at_load(place, folder, longer, "its schedule is linear steps=2", "the plan's cosine steps=50")


def another_weight_decay(place: Place) -> str:
    return told_at_load(place, saved(place), replace(TRAINING, weight_decay=0.5), "weight_decay 0.01 (the plan's 0.5)")


def in_two_groups(program: Program) -> None:
    """The first parameter in a group by itself, as a program with parameter groups has it."""
    [*_, group] = program.optimizer.param_groups
    first, *rest = group["params"]
    group["params"] = rest
    program.optimizer.add_param_group({**group, "params": [first], "lr": 0.5, "weight_decay": 0.0})


def save_groups(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        in_two_groups(program)
        train(program)
        program.save_checkpoint(folder)


def load_groups(rank: int, world: int, folder: str, split: bool) -> list[tuple[float, float]] | AutoplanError:
    with new_program(replace(TRAINING, learning_rate=0.25)) as program:
        if split:
            in_two_groups(program)
            for group in program.optimizer.param_groups:
                group["lr"], group["weight_decay"] = 0.125, 0.75
        error = caught(lambda: program.load_checkpoint(folder))
        return error or [(group["lr"], group["weight_decay"]) for group in program.optimizer.param_groups]


def rates_by_group(place: Place) -> str:
    place.pools.of(RANKS).run(save_groups, str(place.folder / "step-1"))
    found = place.pools.of(RANKS).run(load_groups, str(place.folder / "step-1"), True)[0]
    return equal(found == [(1e-2, 0.01), (0.5, 0.0)], f"rates and decays are {found}")


def groups_into_one(place: Place) -> str:
    place.pools.of(RANKS).run(save_groups, str(place.folder / "step-1"))
    found = place.pools.of(RANKS).run(load_groups, str(place.folder / "step-1"), False)[0]
    if isinstance(found, list):
        raise Silent(f"one group's rate was taken for all: {found}")
    return clear(found, ("here they are in one group", "plan with the parameter groups"))


def save_apart(rank: int, world: int, folder: str) -> bool:
    """Whether save_weights writes the replicas' mean while they are apart."""
    spec = tiny.spec(dp=RANKS, training=TRAINING)
    spec = replace(spec, parallelism=replace(spec.parallelism, local_steps=8))
    with Program(spec, tiny.program()) as program:
        program.load_weights(tiny.reference().state_dict())
        for held in program.held:
            held.values.add_(float(rank))
        before = [held.values.clone() for held in program.held]
        wanted = program.full_state_dict()
        program.save_weights(folder)
        apart = all(torch.equal(held.values, kept) for held, kept in zip(program.held, before, strict=True))
        dist.barrier()
        program.load_weights(folder)
        found = program.full_state_dict()
        return apart and all(torch.equal(found[name], wanted[name]) for name in wanted)


def local_sgd_weights(place: Place) -> str:
    told = place.pools.of(RANKS).run(save_apart, str(place.folder / "weights"))
    return equal(all(told), "save_weights writes the replicas' mean, and leaves them apart")


def verify_command(place: Place) -> str:
    flip(saved(place) / "rank-0.tensors", 3)
    return refused_command(["checkpoint", "verify", str(place.folder)], "rank-0.tensors isn't as it was written")


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


def of(name: str, guards: str, run: Callable[[Place], str]) -> Attack:
    return Attack("checkpoint", name, guards, run)


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
    of("ranks load different checkpoints", "a model of two steps", other_checkpoint_on_a_rank),
    of("a shard is gone", "three of four parameters overwritten before the error", a_shard_gone),
    of("a bit of a shard flipped", "another value loaded", a_bit_of_a_shard),
    of("a bit flipped that this rank doesn't read", "found by nobody", a_bit_that_no_rank_needs),
    of("a bit of tensors.json flipped", "a tensor read from elsewhere", a_bit_of_the_index),
    of("another learning rate in state.json", "trained with it", lambda p: edited_state(p, "learning_rate", 0.02)),
    of("another step in state.json", "dropout and data of another step", lambda p: edited_state(p, "step", 9)),
    of("another extra in state.json", "data read twice", lambda p: edited_state(p, "extra", {"position": 8})),
    of("two shards swapped", "parameters in each other's place", shards_swapped),
    of("state.json of another checkpoint", "steps and values of two checkpoints", state_of_another),
    of("a pickle as .metadata", "code runs on every rank", lambda p: pickled(p, ".metadata")),
    of("a pickle as tensors.json", "code runs on every rank", lambda p: pickled(p, "tensors.json")),
    of("a pickle as a shard", "code runs on every rank", lambda p: pickled(p, "rank-0.tensors")),
    of("a checkpoint of the format before", "a traceback, or its pickle read", older_format),
    of("two jobs on one folder", "values of two trainings mixed", another_job_saves_there),
    of("a lock that a killed job left", "the restart refused", a_killed_job_s_lock),
    of("extra changed while an asynchronous save runs", "extra as it is later", extra_changed_later),
    of("extra that differs by rank", "one rank's taken for all",
       lambda p: extra_refused(p, "by rank", "ranks don't agree on extra")),
    of("extra that holds itself", "RecursionError", lambda p: extra_refused(p, "endless", "it holds itself")),
    of("a tensor in extra", "TypeError in a thread", lambda p: extra_refused(p, "tensor", "of Tensor")),
    of("NaN in one rank's optimizer state", "a checkpoint that can't be gone on from", moment_not_finite),
    of("a checkpoint in fp64 loaded into a plan in fp32", "the optimizer crashes at its first step", another_precision),
    of("a finished schedule's checkpoint, a plan without one", "trained at a rate of 0", schedule_has_ended),
    of("another schedule in the plan", "the schedule changed silently", another_schedule),
    of("another weight_decay in the plan", "one of both dropped silently", another_weight_decay),
    of("two groups with rates of their own", "group 0's rate for all", rates_by_group),
    of("two groups loaded into one", "group 0's rate for all", groups_into_one),
    of("save_weights between two averages of local SGD", "one replica written", local_sgd_weights),
    of("autoplan checkpoint verify, a bit flipped", "told as whole", verify_command),
    of("save where a damaged checkpoint stands", "it is removed, or training can't go on", an_older_save_ended_badly),
    of("save beside a user's folder step-1.old", "the user's folder removed", a_folder_named_old),
)  # fmt: skip
