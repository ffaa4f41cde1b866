"""The values that a plan comes with: safetensors files beside plan.json, which names each with a hash of its bytes."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from autoplan.errors import PlanFileError, WeightsError
from autoplan.ir.checksums import file_hash
from autoplan.ir.graph import Model
from autoplan.ir.start import FOLDER, Start, StoredFile
from autoplan.runtime.parallel.own_box import whole
from autoplan.runtime.weights.safetensors_files import INDEX, Safetensors, weight_files
from autoplan.runtime.weights.tensor_files import CODES, FileTensor, header_bytes, write_at, write_box
from autoplan.runtime.weights.writing import MAX_FILE_BYTES, WeightFile, index_of, split


def names_of(model: Model) -> frozenset[str]:
    """Every name that the user has for what a traced model reads, and for what is kept for its state dict."""
    names = {buffer.name for buffer in model.buffers}
    for parameter in (*model.parameters, *model.unread):
        names |= {parameter.source, *parameter.aliases}
        names |= {name for member in parameter.members for name in (member.source, *member.aliases)}
    return frozenset(names)


def write_values(
    start: Start, source: nn.Module | Path | None, folder: Path, names: Collection[str] | None = None,
    most: int = MAX_FILE_BYTES,
) -> Start:  # fmt: skip
    """Writes a plan's values into a new folder, and returns its start with the files named.

    names   what is written of them; None: everything
    source  the model, whose values of this moment they are; or the folder that another export of the plan wrote
    PlanFileError where the values aren't to be had, or the model is no longer what was planned.
    """
    if not start.stored:
        return start
    if start.folder:
        return start if start.files else replace(start, files=files_of(Path(start.folder)))
    if source is None:
        said = "its values are neither in this process nor in its folder"
        raise PlanFileError("the plan", said, "plan the model again and export")
    folder.mkdir()
    if isinstance(source, Path):
        check_values(start, source)
        for file in start.files:
            shutil.copyfile(source / file.name, folder / file.name)
        return start
    write_model(source, folder, names, most)
    return replace(start, files=tuple(stored(file) for file in sorted(folder.iterdir())))


def starting_from(start: Start, folder: Path) -> Start:
    """A plan whose training starts from the safetensors in a folder, which stay where they are; an export hashes them.

    WeightsError where they aren't to be read.
    """
    Safetensors(folder)
    return replace(start, stored=True, seed=None, unknown=(), files=(), folder=str(folder.resolve()))


def files_of(folder: Path) -> tuple[StoredFile, ...]:
    """The safetensors that a folder stands for, and their index, each with its hash."""
    paths = [*weight_files(folder)[0], *(path for path in (folder / INDEX,) if path.is_file())]
    return tuple(replace(stored(path), name=str(path.relative_to(folder))) for path in paths)


def write_model(model: nn.Module, folder: Path, names: Collection[str] | None, most: int) -> None:
    """Every parameter and buffer of those names, a tied one once, one tensor after another."""
    own = [*model.named_parameters(), *model.named_buffers()]
    tensors = {name: tensor for name, tensor in own if names is None or name in names}
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.dtype not in CODES:
            said = "it has lost its values" if tensor.is_meta else f"safetensors hold no {tensor.dtype}"
            raise PlanFileError(name, said, "plan the function that makes the model: parallelize(make_model, ...)")
    groups = split([(name, (t.dtype, tuple(t.shape))) for name, t in tensors.items()], most)
    many, files = len(groups), []
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{many:05d}.safetensors" if many > 1 else "model.safetensors"
        files.append(WeightFile(name, 0, tuple(group)))
        write_file(folder / name, {key: tensors[key] for key, _ in group})
    if many > 1:
        (folder / INDEX).write_text(json.dumps(index_of(files), indent=2) + "\n")


def write_file(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    header = header_bytes({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_at(descriptor, 0, memoryview(header))
        offset = len(header)
        for tensor in tensors.values():
            place = FileTensor(path, tensor.dtype, tuple(tensor.shape), offset)
            write_box(descriptor, place, whole(place.shape), tensor.detach().cpu().resolve_conj().resolve_neg())
            offset += place.bytes
    finally:
        os.close(descriptor)


def stored(file: Path) -> StoredFile:
    return StoredFile(file.name, file.stat().st_size, file_hash(file))


def check_values(start: Start, folder: Path, share: int = 0, shares: int = 1) -> None:
    """Reads one in ``shares`` of a plan's files of values; WeightsError where one is missing or holds other bytes."""
    remedy = "copy the folder again as it was exported, or export the plan again"
    if start.folder:
        remedy = "put it back as it was when the plan was exported, or give weights: train.py --weights"
    if not start.files:
        raise WeightsError(folder, "the plan was written without its values", "export it where its model is")
    for file in start.files[share::shares]:
        path = folder / file.name
        if not path.is_file():
            raise WeightsError(path, "it is missing, and training starts from it", remedy)
        if path.stat().st_size != file.bytes or file_hash(path) != file.sha256:
            raise WeightsError(path, "it holds other bytes than those that plan.json names", remedy)


def put_values(start: Start, staged: Path, target: Path, before: Start) -> None:
    """Moves written values into an exported folder.

    before  what stands in the folder comes from: its values are replaced; PlanFileError, before any is, for files
            that aren't those
    """
    place = target / FOLDER
    files = () if start.folder else start.files
    old = {} if before.folder else {file.name: file for file in before.files}
    for file in files:
        path = place / file.name
        if path.exists() and (file.name not in old or stored(path) != old[file.name]):
            said = "it isn't what an export wrote here, and would be replaced"
            raise PlanFileError(path, said, "move it away, or export to another folder")
    if files:
        place.mkdir(exist_ok=True)
    for file in files:
        os.replace(staged / FOLDER / file.name, place / file.name)
    for name in old.keys() - {file.name for file in files}:
        path = place / name
        if path.is_file() and stored(path) == old[name]:
            path.unlink()
