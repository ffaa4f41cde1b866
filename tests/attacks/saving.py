"""Folders that weights are saved into: damaged afterwards, shared with others, and what is in them already."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file

from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, contents, equal, refused, unharmed
from tests.attacks.weights import INDEX, WRONG, attempt, shards, tensors, turned_away
from tests.fixtures import tiny_program as tiny


def save(rank: int, world: int, folder: str, seed: int = 3, most: int = 500) -> None:
    with Program(tiny.spec(dp=world, zero=3 if world > 1 else 0), tiny.program()) as program:
        program.load_weights(tiny.reference(seed).state_dict())
        program.save_weights(folder, max_file_bytes=most)


def save_apart(rank: int, world: int, folder: str) -> None:
    save(rank, world, f"{folder}/{rank}")


def save_nan(rank: int, world: int, folder: str) -> None:
    with Program(tiny.spec(), tiny.program()) as program:
        program.load_weights(tiny.reference().state_dict())
        with torch.no_grad():
            program.held[0].values.view(-1)[0] = float("nan")
        program.save_weights(folder)


def flipped_bit(place: Place) -> str:
    place.pools.of(1).run(save, str(place.folder))
    path = place.folder / "model-00002-of-00003.safetensors"
    path = path if path.is_file() else sorted(place.folder.glob("*.safetensors"))[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    return turned_away(place, str(place.folder), "damaged")


def flipped_bit_of_one_file(place: Place) -> str:
    place.pools.of(1).run(save, str(place.folder), 3, 10**9)
    path = place.folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 64
    path.write_bytes(content)
    return turned_away(place, str(path), "damaged")


def mixed_saves(place: Place) -> str:
    """What a process leaves that is ended while it puts its files in place, and what the next save makes of it."""
    one, two = place.folder / "one", place.folder / "two"
    place.pools.of(1).run(save, str(one), 3)
    place.pools.of(1).run(save, str(two), 4)
    first = min(two.glob("*.safetensors"))
    shutil.copytree(two, one / ".autoplan-saving-0123", ignore=lambda *_: [first.name])
    shutil.copyfile(first, one / first.name)
    said = turned_away(place, str(one), "damaged, or not what was saved")
    place.pools.of(1).run(save, str(one), 5)
    error, same, _ = place.pools.of(1).run(attempt, str(one), False)[0]
    if error is not None or same or list(one.glob(".autoplan*")):
        raise Silent(f"the next save isn't read: {error}, {sorted(one.iterdir())}")
    return said


def without_its_index(place: Place) -> str:
    place.pools.of(1).run(save, str(place.folder))
    (place.folder / INDEX).unlink()
    return turned_away(place, str(place.folder), "is missing, which autoplan-weights.json names")


def edited_manifest(place: Place) -> str:
    place.pools.of(1).run(save, str(place.folder))
    path = place.folder / "autoplan-weights.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 1, "save": "mine"', 1))
    return turned_away(place, str(place.folder), "autoplan-weights.json: it is damaged")


def ema_beside(place: Place) -> str:
    for name in ("model_ema.safetensors", "model-best.safetensors", "config.json", "notes.txt"):
        (place.folder / name).write_text(f"my {name}")
    before = contents(place.folder)
    place.pools.of(4).run(save, str(place.folder))
    place.pools.of(4).run(save, str(place.folder), 4, 10**9)
    unharmed(before, place.folder)
    left = sorted(path.name for path in place.folder.iterdir() if path.name not in before)
    return equal(left == ["autoplan-weights.json", "model.safetensors"], f"beside the user's files: {left}")


def save_refused(place: Place, *words: str) -> str:
    """A save into the attack's folder is refused, and what is there stays."""
    before = contents(place.folder)
    said = refused(lambda: place.pools.of(1).run(save, str(place.folder), 3, 10**9), *words)
    unharmed(before, place.folder)
    if contents(place.folder).keys() != before.keys():
        raise Lost("half of a save is left")
    return said


def over_others(place: Place) -> str:
    save_file(tensors(4), place.folder / "model.safetensors")
    return save_refused(place, "model.safetensors isn't of an earlier save", "would be replaced")


def over_replaced(place: Place) -> str:
    place.pools.of(1).run(save, str(place.folder), 3, 10**9)
    save_file(tensors(4), place.folder / "model.safetensors")
    return save_refused(place, "was changed since", "would be replaced")


def beside_an_index(place: Place) -> str:
    shards(place.folder, 2)
    (place.folder / INDEX).write_text("{}")
    return save_refused(place, "would be mixed up")


def beside_an_adapter(place: Place) -> str:
    (place.folder / "adapter_config.json").write_text("{}")
    return save_refused(place, "adapter_config.json", "would be mixed up")


def over_a_link(place: Place) -> str:
    other = place.folder / "other-run"
    other.mkdir()
    save_file(tensors(4), other / "model.safetensors")
    (place.folder / "model.safetensors").symlink_to(other / "model.safetensors")
    return save_refused(place, "model.safetensors isn't of an earlier save")


def folders_that_differ(place: Place) -> str:
    said = refused(lambda: place.pools.of(4).run(save_apart, str(place.folder)), "rank 1 saves to")
    if list(place.folder.iterdir()):
        raise Lost("parts of weights in several folders")
    return said


def two_saves_at_once(place: Place) -> str:
    descriptor = os.open(place.folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # as the other job holds it
        return save_refused(place, "another save is at work in it")
    finally:
        os.close(descriptor)


def parameters_that_are_nan(place: Place) -> str:
    place.pools.of(1).run(save, str(place.folder), 3, 10**9)
    before = contents(place.folder)
    said = refused(lambda: place.pools.of(1).run(save_nan, str(place.folder)), "aren't finite")
    unharmed(before, place.folder)
    return said


def save_with_config(rank: int, world: int, folder: str, came: str, dtype: torch.dtype | None) -> list[str]:
    """A save of a model that came with a config.json; what was said."""
    with Program(tiny.spec(), tiny.program(), pretrained=Path(came)) as program:
        program.load_weights(tiny.reference().state_dict())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            program.save_weights(folder, dtype)
    return [str(warning.message) for warning in said]


def config_of_the_user_s(place: Place) -> str:
    came, folder = place.folder / "came", place.folder / "trained"
    came.mkdir()
    folder.mkdir()
    (came / "config.json").write_text('{"dtype": "float64"}')
    (folder / "config.json").write_text('{"mine": 1}')
    said = place.pools.of(1).run(save_with_config, str(folder), str(came), None)[0]
    if (folder / "config.json").read_text() != '{"mine": 1}':
        raise Lost("the user's config.json is gone")
    told = [text for text in said if "config.json is your own, and was left as it is" in text]
    if not told:
        raise Silent("nobody was told that the model's config.json isn't there")
    return told[0]


def config_of_another_dtype(place: Place) -> str:
    """from_pretrained makes the model in the dtype that config.json says, and would round what is saved."""
    came, folder = place.folder / "came", place.folder / "trained"
    came.mkdir()
    (came / "config.json").write_text('{"dtype": "float64"}')
    found = []
    for dtype in (torch.bfloat16, None):
        place.pools.of(1).run(save_with_config, str(folder), str(came), dtype)
        found.append(json.loads((folder / "config.json").read_text())["dtype"])
    return equal(found == ["bfloat16", "float64"], f"config.json says {found} of weights that are saved so")


GONE = "files of the user's are gone"
ATTACKS: tuple[Attack, ...] = (
    Attack("weights", "a bit flipped in saved shards", WRONG, flipped_bit),
    Attack("weights", "a bit flipped in a saved file, read by its name", WRONG, flipped_bit_of_one_file),
    Attack("weights", "a save that was ended while it put its files in place", "two saves mixed", mixed_saves),
    Attack("weights", "saved shards without their index", WRONG, without_its_index),
    Attack("weights", "an edited manifest", WRONG, edited_manifest),
    Attack("weights", "EMA weights beside", GONE, ema_beside),
    Attack("weights", "saving over weights of others", GONE, over_others),
    Attack("weights", "saving over weights that replaced ours", GONE, over_replaced),
    Attack("weights", "saving beside another's index", "the folder is read as the other's", beside_an_index),
    Attack("weights", "saving beside an adapter", "from_pretrained puts it on top", beside_an_adapter),
    Attack("weights", "saving over a link to another run's weights", GONE, over_a_link),
    Attack("weights", "ranks that save to folders of their own", "parts are reported as saved", folders_that_differ),
    Attack("weights", "two jobs that save to one folder", "two saves mixed", two_saves_at_once),
    Attack("weights", "saving beside a config.json of the user's", GONE, config_of_the_user_s),
    Attack("weights", "saving in another dtype", "from_pretrained rounds the weights", config_of_another_dtype),
    Attack("weights", "saving parameters that are NaN", "good weights are replaced by them", parameters_that_are_nan),
)  # fmt: skip
