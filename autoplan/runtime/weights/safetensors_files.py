"""Which safetensors files a path stands for, and their tensors as one source of weights.

Files come from elsewhere: an index that leads out of its folder, files of several saves side by side, and a tensor
that two of them hold are refused before anything is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.runtime.parallel.own_box import Part
from autoplan.runtime.weights.tensor_files import FileTensor, read_box, read_header, without_duplicates

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"  # what from_pretrained looks for
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
WHOLE = "give a safetensors file, or a directory of them"
ONE = "remove what is of another save, or give the very file"


class Safetensors:
    """One safetensors file, or a directory of them with or without an index; open within a with statement.

    WeightsError where a file isn't one, or isn't whole, or where it can't be told which files are meant.
    """

    def __init__(self, path: Path) -> None:
        self.where, self.stack = str(path), ExitStack()
        self.files, listed = weight_files(path)
        self.tensors: dict[str, FileTensor] = {}
        for file in self.files:
            found = read_header(file)
            if twice := sorted(self.tensors.keys() & found.keys()):
                others = f"{self.tensors[twice[0]].file.name} and {file.name}"
                raise WeightsError(path, f"{others} both hold {twice[0]}", ONE)
            self.tensors |= found
        check_listed(path, listed, self.tensors)
        self.descriptors: dict[Path, int] = {}

    def __enter__(self) -> Safetensors:
        for file in self.files:
            self.descriptors[file] = os.open(file, os.O_RDONLY)
            self.stack.callback(os.close, self.descriptors[file])
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def read(self, name: str, part: Part, out: Tensor) -> None:
        tensor = self.tensors[name]
        read_box(self.descriptors[tensor.file], tensor, part, out)


def weight_files(path: Path) -> tuple[tuple[Path, ...], Mapping[str, Path]]:
    """The safetensors files that a path stands for, and the file of each tensor where an index says it.

    WeightsError where there are none, or where it isn't clear which are meant.
    """
    if path.is_file():
        return (path,), {}
    listed = {name: path / file for name, file in read_index(path / INDEX).items()} if present(path / INDEX) else {}
    if listed:
        files = tuple(sorted(set(listed.values())))
        if present(path / ALONE) and path / ALONE not in files:
            raise WeightsError(path, f"it has {ALONE} beside the index of other files", ONE)
    else:
        files = without_index(path)
    missing = [file for file in files if not file.is_file()]
    if missing or not files:
        what = f"{missing[0].name} is missing" if missing else "there is no safetensors file"
        raise WeightsError(path, what, WHOLE)
    for file in files:
        check_inside(path, file)
    return files, listed


def present(path: Path) -> bool:
    """Whether anything has that name, a link that leads nowhere included."""
    return path.exists() or path.is_symlink()


def without_index(path: Path) -> tuple[Path, ...]:
    """model.safetensors, or else every safetensors file; WeightsError where shards aren't all those of one save."""
    files = tuple(sorted(path.glob("*.safetensors")))
    alone = [file for file in files if file.name == ALONE]
    shards = [match for file in files if (match := SHARD.fullmatch(file.name))]
    if alone:
        beside = [match.string for match in shards if match["stem"] == "model"]
        if beside:
            raise WeightsError(path, f"it has {beside[0]} beside {ALONE}, and no index says which is meant", ONE)
        return tuple(alone)
    saves = {(match["stem"], match["count"]) for match in shards}
    if len(saves) > 1:
        names = " and ".join(sorted(f"{stem}-…-of-{count}" for stem, count in saves))
        raise WeightsError(path, f"it has shards of several saves, {names}, and no index", ONE)
    for _, count in saves:
        lacking = sorted(set(range(1, int(count) + 1)) - {int(match["number"]) for match in shards})[:1]
        if lacking or len(shards) != int(count):
            raise WeightsError(path, f"it has {len(shards)} of {int(count)} shards, and no index", WHOLE)
        if len(files) > len(shards):
            other = next(file.name for file in files if not SHARD.fullmatch(file.name))
            raise WeightsError(path, f"it has {other} beside {len(shards)} shards, and no index", ONE)
    return files


def read_index(index: Path) -> dict[str, str]:
    """The file of each tensor, as an index has it: WeightsError where it isn't one, or leads out of its folder."""
    try:
        if not index.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        data = json.loads(index.read_text(), object_pairs_hook=without_duplicates)["weight_map"]
        if not isinstance(data, dict) or not all(isinstance(name, str) for name in data.values()) or not data:
            raise ValueError("its weight_map isn't a file for each tensor")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        said = f"it isn't an index of safetensors files ({error!r})"[:400]
        raise WeightsError(index, said, "write it again") from None
    for name in set(data.values()):
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name or not name.endswith(".safetensors"):
            raise WeightsError(index, f"it names {name!r}, which is no safetensors file in its folder", WHOLE)
    return data


def check_inside(folder: Path, file: Path) -> None:
    """WeightsError where a link leads out of the folder, unless it is the hub's cache that keeps its files elsewhere.

    There a snapshot of a repository links to ``blobs`` beside ``snapshots`` (huggingface_hub, "Understand caching").
    """
    root, real = folder.resolve(), file.resolve()
    caches = [above.parent / "blobs" for above in root.parents if above.name == "snapshots"]
    if not any(real.is_relative_to(allowed) for allowed in (root, *caches)):
        said = f"{file.name} is a link to {real}, outside of the folder"
        raise WeightsError(folder, said, "give the file itself, or copy it into the folder")


def check_listed(path: Path, listed: Mapping[str, Path], tensors: Mapping[str, FileTensor]) -> None:
    """WeightsError where an index and its files differ: one of them is of another save."""
    for name, file in listed.items():
        if name not in tensors or tensors[name].file != file:
            raise WeightsError(path, f"its index has {name} in {file.name}, which lacks it", ONE)


def told_names(names: Sequence[str], most: int = 5) -> str:
    """The first of several names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
