"""The weights as Hugging Face safetensors: one file, or several of them with an index, each written by one rank.

torch's HuggingFaceStorageWriter knows no pieces of a fused projection, writes everything twice and has one rank put
it together.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import CheckpointError, InputsError
from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.checkpoint.plain_values import path_of
from autoplan.runtime.collectives.objects import from_all, from_first, together
from autoplan.runtime.parallel.flat_param_views import box_of, sources_of, values_of
from autoplan.runtime.parallel.own_box import Part, whole
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.parallel.whole_tensors import Storage, gathered, whole_buffers
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.weights.loading import own_parameters
from autoplan.runtime.weights.manifest import SAVE, described
from autoplan.runtime.weights.safetensors_files import INDEX
from autoplan.runtime.weights.tensor_files import CODES, FileTensor, header_bytes, write_at, write_box
from autoplan.runtime.weights.weights_folder import SavePlace, beside, told, with_dtype

MAX_FILE_BYTES = 5 * 10**9  # as save_pretrained had it for long: files that can be fetched again when one breaks

Kind = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class WeightFile:
    """One file to be written: by which rank, and what it holds, in its order."""

    name: str
    writer: int
    tensors: tuple[tuple[str, Kind], ...]

    @property
    def bytes(self) -> int:
        return sum(bytes_of(kind) for _, kind in self.tensors)


def write_weights(
    spec: ProgramSpec, storage: Storage, held: Sequence[ShardedParameter], buffers: Mapping[str, Tensor],
    unread: Mapping[str, Tensor], folder: str | os.PathLike, dtype: torch.dtype | None, max_file_bytes: int,
    pretrained: Path | None, part_of: Callable[[ShardedParameter], Tensor | None],
) -> None:  # fmt: skip
    """See ``RankModel.save_weights``; every rank calls it.

    part_of     this rank's part of a parameter, as it is to be written
    pretrained  a folder with what came with the model beside its weights, config.json and so on
    """
    rest = whole_buffers(spec, buffers) | dict(unread)
    files = planned(spec, rest, dtype, max_file_bytes)
    writers = {name: file.writer for file in files for name, _ in file.tensors}
    names = [file.name for file in files] + ([INDEX] if len(files) > 1 else [])
    with ExitStack() as stack:
        place = SavePlace(same_on_all(str(together(lambda: path_of(folder, "a folder")))))
        stack.callback(place.close)
        together(lambda: place.claim(names) if dist.get_rank() == 0 else None)
        place.save = from_first(place.save)
        output = together(lambda: stack.enter_context(Output(place.staging, files, place.save)))
        sources = gathered(
            spec, storage, held, part_of, receiver=lambda p: writers[next(iter(names_in(p)))]
        )
        for stored, value in sources:
            for name, box, part in parts_in(stored, value):
                output.write(name, box, part)
        for name, value in rest.items():
            output.write(name, whole(tuple(value.shape)), value)
        everyone = from_all(together(output.finish))
        written = {name: said for each in everyone for name, said in sorted(each.items())}
        index = json.dumps(index_of(files), indent=2) + "\n" if len(files) > 1 else None
        extra = with_dtype(beside(pretrained), files) if dist.get_rank() == 0 else {}
        together(lambda: place.put(written, index, extra) if dist.get_rank() == 0 else None)


def trained_of(
    spec: ProgramSpec, held: Sequence[ShardedParameter], *rest: object
) -> tuple[ProgramSpec, Sequence[ShardedParameter], Mapping[str, Tensor], Mapping[str, Tensor], None]:
    """Of what ``write_weights`` takes the trained parameters alone: no buffers, nothing unread, no files beside.

    InputsError where nothing is trained: an empty file would be taken for weights.
    """
    parameters = tuple(p for p in spec.lowered.parameters if p.trainable)
    if not parameters:
        raise InputsError("trained_only=True", "the model has no trained parameter", "leave trained_only out")
    return (
        replace(spec, lowered=replace(spec.lowered, parameters=parameters)),
        [each for each in held if each.stored.trainable], {}, {}, None,
    )  # fmt: skip


def same_on_all(folder: str) -> Path:
    """InputsError, on every rank, where they don't name the same folder."""
    everyone = from_all(folder)
    if other := next((each for each in everyone if each != everyone[0]), None):
        rank = everyone.index(other)
        said = f"rank {rank} saves to {other}: the files of one save belong into one folder"
        raise InputsError(everyone[0], said, "give every rank the same folder")
    return Path(folder)


def place_of(stored: StoredParameter) -> Part:
    """Where a parameter lies in the user's own, of which it may be a piece."""
    part = whole(stored.type.shape)
    return part if stored.dim < 0 else part.shifted(stored.dim, stored.start)


def names_in(stored: StoredParameter) -> tuple[str, ...]:
    """The user's own parameters of which one holds something."""
    return tuple(sources_of(stored)) or (stored.source,)


def parts_in(stored: StoredParameter, value: Tensor) -> Iterator[tuple[str, Part, Tensor]]:
    """Of which of the user's own parameters a whole one has which box, and its values."""
    if not stored.members:
        yield stored.source, place_of(stored), value
    for member in stored.members:
        yield member.source, box_of(member), values_of(member, value)


def planned(
    spec: ProgramSpec, rest: Mapping[str, Tensor], dtype: torch.dtype | None, max_file_bytes: int
) -> tuple[WeightFile, ...]:
    """The files, alike on every rank. The first rank writes ``rest``, which it alone has, and what comes out of one
    flat parameter; other files are dealt out."""
    if dtype is not None and (dtype not in CODES or not dtype.is_floating_point):
        raise InputsError(f"dtype={dtype}", "it isn't a floating dtype of safetensors", "give torch.bfloat16, say")
    first = from_first([(name, (value.dtype, tuple(value.shape))) for name, value in rest.items()])
    dtypes = {name: kept_dtype(spec, p) for p in spec.lowered.parameters for name in names_in(p)}
    own = {source: (dtypes[source], shape) for source, _, shape in own_parameters(spec).values()}
    flat = {name for p in spec.lowered.parameters if p.members for name in names_in(p)}
    groups = split([(name, converted(kind, dtype)) for name, kind in (*first, *own.items())], max_file_bytes)
    names = dict(first)
    files = []
    for index, group in enumerate(groups):
        name = f"model-{index + 1:05d}-of-{len(groups):05d}.safetensors" if len(groups) > 1 else "model.safetensors"
        writer = 0 if any(n in names or n in flat for n, _ in group) else index % dist.get_world_size()
        files.append(WeightFile(name, writer, tuple(group)))
    return tuple(files)


def kept_dtype(spec: ProgramSpec, stored: StoredParameter) -> torch.dtype:
    """In which a parameter lies on ranks: that of its master; of one that isn't trained that of the computation."""
    return spec.storage_dtype(stored.type) if stored.trainable else spec.parameter_dtype(stored)


def converted(kind: Kind, dtype: torch.dtype | None) -> Kind:
    return (dtype, kind[1]) if dtype is not None and kind[0].is_floating_point else kind


def bytes_of(kind: Kind) -> int:
    return kind[0].itemsize * math.prod(kind[1])


def split(tensors: Sequence[tuple[str, Kind]], most: int) -> list[list[tuple[str, Kind]]]:
    """In their order, as many to a group as have at most that many bytes, at least one."""
    groups: list[list[tuple[str, Kind]]] = [[]]
    size = 0
    for name, kind in tensors:
        if groups[-1] and size + bytes_of(kind) > most:
            groups.append([])
            size = 0
        groups[-1].append((name, kind))
        size += bytes_of(kind)
    return groups


class Output:
    """The files of which this rank is the writer, in a folder of their own until all ranks have finished.

    Opened as a context; its end closes them. CheckpointError where one can't be opened.
    """

    def __init__(self, staging: Path, files: Sequence[WeightFile], save: str) -> None:
        self.staging, self.save, self.files = staging, save, [f for f in files if f.writer == dist.get_rank()]
        self.descriptors: dict[str, int] = {}
        self.tensors: dict[str, tuple[int, FileTensor]] = {}
        self.failed: CheckpointError | None = None

    def __enter__(self) -> Output:
        try:
            with told(self.staging.parent):
                for file in self.files:
                    self.open(file)
        except CheckpointError:
            self.__exit__()
            raise
        return self

    def open(self, file: WeightFile) -> None:
        path = self.staging / file.name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self.descriptors[file.name] = descriptor
        header = header_bytes(dict(file.tensors), {SAVE: self.save})
        write_at(descriptor, 0, memoryview(header))
        offset = len(header)
        for name, (dtype, shape) in file.tensors:
            tensor = FileTensor(path, dtype, shape, offset)
            self.tensors[name] = descriptor, tensor
            offset += tensor.bytes

    def write(self, name: str, part: Part, values: Tensor) -> None:
        """A box of a tensor. What goes wrong waits for ``finish``: the other ranks go on gathering."""
        if self.failed is not None:
            return
        descriptor, tensor = self.tensors[name]
        try:
            with told(self.staging.parent):
                write_box(descriptor, tensor, part, values.to(tensor.dtype))
        except CheckpointError as error:
            self.failed = error

    def finish(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Brings the files to the disk, and says what a manifest says of them; CheckpointError where that, or an
        earlier write, failed."""
        if self.failed is not None:
            raise self.failed
        with told(self.staging.parent):
            for descriptor in self.descriptors.values():
                os.fsync(descriptor)
            return {name: described(self.staging / name) for name in self.descriptors}

    def __exit__(self, *exception: object) -> None:
        for descriptor in self.descriptors.values():
            os.close(descriptor)


def index_of(files: Sequence[WeightFile]) -> dict[str, object]:
    """What model.safetensors.index.json says."""
    where = {name: file.name for file in files for name, _ in file.tensors}
    return {"metadata": {"total_size": sum(file.bytes for file in files)}, "weight_map": dict(sorted(where.items()))}
