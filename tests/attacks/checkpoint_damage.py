"""Attacks on what checkpoints hold: shards gone, bits flipped, files of other checkpoints, code."""

from __future__ import annotations

import json
import pickle
import shutil

from autoplan.errors import AutoplanError
from autoplan.runtime.checkpoint.state_json import unsealed
from tests.attacks.attack import Attack, Place, Silent, clear, refused_command
from tests.attacks.checkpoints import RANKS, flip, load, load_refused, of, saved
from tests.corruptions.damage import Intruder


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


def verify_command(place: Place) -> str:
    flip(saved(place) / "rank-0.tensors", 3)
    return refused_command(["checkpoint", "verify", str(place.folder)], "rank-0.tensors isn't as it was written")


ATTACKS: tuple[Attack, ...] = (
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
    of("autoplan checkpoint verify, a bit flipped", "told as whole", verify_command),
)  # fmt: skip
