"""Weights from elsewhere, and folders that weights are saved into."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from autoplan.errors import AutoplanError
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, clear, equal
from tests.fixtures import tiny_program as tiny

Source = str | Mapping[str, object]
INDEX = "model.safetensors.index.json"


def tensors(seed: int = 3) -> dict[str, Tensor]:
    """Whole weights of the tiny model, a tied parameter once."""
    found = {name: value.clone() for name, value in tiny.reference(seed).state_dict().items()}
    del found["embed.weight"]
    return found


def attempt(rank: int, world: int, source: Source, strict: bool) -> tuple[AutoplanError | None, bool, list[str]]:
    """A load into a program that has values: the error, whether its values are as before, and the warnings."""
    with Program(tiny.spec(), tiny.program()) as program:
        program.load_weights(tiny.reference(1).state_dict())
        before = dict(program.full_state_dict())
        found: AutoplanError | None = None
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                program.load_weights(source, strict=strict)  # type: ignore[arg-type]
            except AutoplanError as error:
                found = error
        after = dict(program.full_state_dict())
        same = all(torch.equal(after[name], before[name]) for name in before)
        return found, same, [str(warning.message) for warning in said]


def turned_away(place: Place, source: Source, *words: str, strict: bool = False) -> str:
    """The error's text, where a load was refused and changed nothing."""
    error, same, _ = place.pools.of(1).run(attempt, source, strict)[0]
    if error is None:
        raise Silent("it was loaded")
    text = clear(error, words)
    if not same:
        raise Lost(f"values changed: {text}")
    return text


def with_header(change: Callable[[dict], object], extra: bytes = b"") -> Callable[[Place, str], str]:
    """A file of the tiny model's with another header over the same data."""

    def run(place: Place, word: str) -> str:
        path = place.folder / "model.safetensors"
        save_file(tensors(), path)
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        made = change(header)
        text = made if isinstance(made, bytes) else json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :] + extra)
        return turned_away(place, str(path), word)

    return run


def entry(header: dict, number: int) -> dict:
    """One of the header's tensors, in the order in which they lie."""
    named = [value for name, value in header.items() if name != "__metadata__"]
    return sorted(named, key=lambda value: value["data_offsets"])[number]


def moved(header: dict, number: int, by: int) -> None:
    each = entry(header, number)
    each["data_offsets"] = [at + by for at in each["data_offsets"]]


def twice(header: dict) -> bytes:
    name, value = next((n, v) for n, v in header.items() if n != "__metadata__")
    return json.dumps(header).encode()[:-1] + b"," + json.dumps({name: value}).encode()[1:]


HEADERS: tuple[tuple[str, str, Callable[[Place, str], str]], ...] = (
    ("offsets that lie outside of the data", "behind a gap", with_header(lambda h: moved(h, -1, 10**6))),
    ("a tensor that overlaps the one before", "within the tensor before", with_header(lambda h: moved(h, 1, -8))),
    ("negative offsets", "whole numbers of 0 or more", with_header(lambda h: moved(h, 0, -8))),
    ("bytes that belong to no tensor at the end", "the file at", with_header(lambda h: None, extra=b"x" * 64)),
    ("a name twice in a header", "stands twice", with_header(twice)),
    ("an unknown dtype", "has the dtype 'F31'", with_header(lambda h: entry(h, 0).update(dtype="F31"))),
    ("a dtype that is no text", "isn't a safetensors file", with_header(lambda h: entry(h, 0).update(dtype=["F64"]))),
    ("a shape of other bytes than its data", "a tensor of", with_header(lambda h: entry(h, 0).update(shape=[3]))),
    ("a shape of negative sizes", "0 or more", with_header(lambda h: entry(h, 0).update(shape=[-5, -10]))),
    ("a shape of true and 5.0", "0 or more", with_header(lambda h: entry(h, 0).update(shape=[True, 50.0]))),
    ("a header nested without end", "isn't a safetensors file", with_header(lambda h: b"[" * 200_000)),
    ("a header that isn't UTF-8", "isn't a safetensors file", with_header(lambda h: b"\xff" * 64)),
)


def longer_header(place: Place) -> str:
    path = place.folder / "w.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}" * 100)
    return turned_away(place, str(path), "too few for its header")


def truncated(place: Place) -> str:
    save_file(tensors(), place.folder / "model.safetensors")
    os.truncate(place.folder / "model.safetensors", (place.folder / "model.safetensors").stat().st_size - 8)
    return turned_away(place, str(place.folder), "cut off")


def indexed(place: Place, name: str, *words: str, at: Path | None = None) -> str:
    """All tensors lie in a file that the index names so."""
    folder = place.folder / "weights"
    folder.mkdir()
    save_file(tensors(), at or place.folder / "secret.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors(), name)}))
    return turned_away(place, str(folder), *words)


def link(place: Place) -> str:
    (place.folder / "weights").mkdir()
    save_file(tensors(), place.folder / "secret.safetensors")
    (place.folder / "weights" / "model.safetensors").symlink_to(place.folder / "secret.safetensors")
    return turned_away(place, str(place.folder / "weights"), "a link to", "outside of the folder")


def hub_cache(place: Place) -> str:
    """The one link that leads out of its folder and is meant to: the hub's cache."""
    snapshot, blobs = place.folder / "models--a--b" / "snapshots" / "123", place.folder / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(tensors(), blobs / "ab12")
    (snapshot / "model.safetensors").symlink_to("../../blobs/ab12")
    error, same, _ = place.pools.of(1).run(attempt, str(snapshot), False)[0]
    if error is not None:
        raise Silent(f"it is refused: {error}")
    return equal(not same, "a snapshot of the hub's cache is read through its links")


def shards(folder: Path, count: int, seed: int = 3, name: str = "model-{:05d}-of-{:05d}.safetensors") -> list[str]:
    names, values = sorted(tensors(seed)), tensors(seed)
    files = [name.format(number + 1, count) for number in range(count)]
    for number, file in enumerate(files):
        save_file({n: values[n] for n in names[number::count]}, folder / file)
    return files


def stale_shards(place: Place) -> str:
    shards(place.folder, 2)
    shards(place.folder, 3, seed=4)
    return turned_away(place, str(place.folder), "shards of several saves", "no index")


def lost_shard(place: Place) -> str:
    (place.folder / shards(place.folder, 3)[1]).unlink()
    return turned_away(place, str(place.folder), "it has 2 of 3 shards")


def whole_beside_shards(place: Place) -> str:
    shards(place.folder, 2)
    save_file(tensors(4), place.folder / "model.safetensors")
    return turned_away(place, str(place.folder), "beside model.safetensors", "no index says which")


def whole_beside_index(place: Place) -> str:
    files = shards(place.folder, 2)
    where = {n: f for f in files for n in load_file(place.folder / f)}
    (place.folder / INDEX).write_text(json.dumps({"weight_map": where}))
    save_file(tensors(4), place.folder / "model.safetensors")
    return turned_away(place, str(place.folder), "model.safetensors beside the index")


def tensor_in_two_files(place: Place) -> str:
    save_file(tensors(), place.folder / "a.safetensors")
    save_file({"layers.0.scale": torch.zeros(5)}, place.folder / "b.safetensors")
    return turned_away(place, str(place.folder), "both hold layers.0.scale")


def index_of_another_save(place: Place) -> str:
    files = shards(place.folder, 2)
    where = {n: files[1] if n in load_file(place.folder / files[0]) else files[0] for n in tensors()}
    (place.folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return turned_away(place, str(place.folder), "its index has", "which lacks it")


def nan_in_a_file(place: Place) -> str:
    values = tensors()
    values["layers.1.scale"][2] = float("nan")
    save_file(values, place.folder / "model.safetensors")
    return turned_away(place, str(place.folder), "layers.1.scale holds NaN or infinity")


def infinity_in_memory(place: Place) -> str:
    values = tensors()
    values["layers.0.down.weight"][0, 0] = float("inf")
    return turned_away(place, values, "layers.0.down.weight holds NaN or infinity")


def unexpected(place: Place) -> str:
    error, _, said = place.pools.of(1).run(attempt, {**tensors(), "lora.a": torch.zeros(1)}, False)[0]
    told = [text for text in said if "1 tensors there are none of the model's" in text and "lora.a" in text]
    if error is not None or not told:
        raise Silent(f"{error}, {said}")
    return told[0]


def unexpected_strictly(place: Place) -> str:
    return turned_away(place, {**tensors(), "lora.a": torch.zeros(1)}, "doesn't have: lora.a", strict=True)


def untied(place: Place) -> str:
    values = tensors()
    return turned_away(place, {**values, "embed.weight": values["head.weight"] + 1}, "are one parameter")


def nested(place: Place) -> str:
    return turned_away(place, {"model": tensors(), "step": 3}, "where a tensor belongs", "the state dict in it")


def without_values(place: Place) -> str:
    return turned_away(place, {n: t.to("meta") for n, t in tensors().items()}, "on the meta device")


WRONG, CHANGED = "other values are loaded", "values change before the error"
ATTACKS: tuple[Attack, ...] = (
    *(Attack("weights", name, WRONG, lambda p, r=run, w=word: r(p, w)) for name, word, run in HEADERS),
    Attack("weights", "a header longer than its file", "memory runs out", longer_header),
    Attack("weights", "a file that is cut off", CHANGED, truncated),
    Attack("weights", "an index that leads to ../", "files outside of the folder are read",
           lambda p: indexed(p, "../secret.safetensors", "no safetensors file in its folder")),
    Attack("weights", "an index with an absolute path", "files outside of the folder are read",
           lambda p: indexed(p, str(p.folder / "secret.safetensors"), "no safetensors file in its folder")),
    Attack("weights", "an index that names a pickle", "it is opened",
           lambda p: indexed(p, "pytorch_model.bin", "no safetensors file in its folder")),
    Attack("weights", "a link out of the folder", "files outside of the folder are read", link),
    Attack("weights", "the links of the hub's cache", "what is meant to be read is refused", hub_cache),
    Attack("weights", "shards of two saves without an index", WRONG, stale_shards),
    Attack("weights", "a shard that is lost, without an index", WRONG, lost_shard),
    Attack("weights", "model.safetensors beside shards", WRONG, whole_beside_shards),
    Attack("weights", "model.safetensors beside another's index", WRONG, whole_beside_index),
    Attack("weights", "a tensor in two files", WRONG, tensor_in_two_files),
    Attack("weights", "an index that has tensors in other files", WRONG, index_of_another_save),
    Attack("weights", "a file that holds NaN", "training goes on with NaN", nan_in_a_file),
    Attack("weights", "a state dict that holds infinity", "training goes on with it", infinity_in_memory),
    Attack("weights", "tensors that the model lacks", "they are left out and nobody is told", unexpected),
    Attack("weights", "tensors that the model lacks, strictly", "they are left out", unexpected_strictly),
    Attack("weights", "two values for a tied parameter", "one of them is dropped", untied),
    Attack("weights", "a training's own file in place of its state dict", "a traceback", nested),
    Attack("weights", "a state dict on the meta device", "a traceback", without_values),
)  # fmt: skip
