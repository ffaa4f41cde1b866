"""What lies where in a checkpoint's files: tensors.json, with a checksum of each stretch of bytes.

    {"files": ["rank-0.tensors", …],
     "tensors": {"parameters/embed.weight": ["float32", [10, 5], [[0, 0, 4021518391, [0, 0], [5, 5]], …]]}}

One list for each chunk, the box of a tensor that one rank wrote: its file by number, the first byte there, the CRC-32
of its bytes, and the box by offsets and sizes. Chunks are row-major, and lie in their files without a gap: so every
byte of a file has a checksum. Nothing is pickled; DCP's planner reads what ``metadata`` makes of it.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from autoplan.errors import WeightsError

TENSORS = "tensors.json"
REMEDY = "give another checkpoint; `autoplan checkpoint verify FOLDER` tells which are whole"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
}


@dataclass(frozen=True)
class SavedChunk:
    """A box of a tensor: where its bytes lie, and their CRC-32."""

    file: str
    start: int
    crc: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of the checkpoint, and the chunks that make it up."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[SavedChunk, ...]

    def bytes_of(self, chunk: SavedChunk) -> int:
        return math.prod(chunk.sizes) * self.dtype.itemsize


Index = Mapping[str, SavedTensor]
"""The tensors by their keys."""


def chunks_of(index: Index) -> Iterator[tuple[str, SavedTensor, SavedChunk]]:
    for key, tensor in index.items():
        for chunk in tensor.chunks:
            yield key, tensor, chunk


def index_text(index: Index) -> str:
    """tensors.json."""
    files = sorted({chunk.file for _, _, chunk in chunks_of(index)})
    number = {name: i for i, name in enumerate(files)}
    tensors = {
        key: [
            str(tensor.dtype).removeprefix("torch."), list(tensor.shape),
            [[number[c.file], c.start, c.crc, list(c.offsets), list(c.sizes)] for c in tensor.chunks],
        ]
        for key, tensor in sorted(index.items())
    }  # fmt: skip
    return json.dumps({"files": files, "tensors": tensors}, separators=(",", ":"))


def digest(content: bytes) -> str:
    """By which state.json knows itself and tensors.json."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_index(folder: Path, wanted: str, sizes: Mapping[str, int]) -> Index:
    """The tensors of a checkpoint. WeightsError where tensors.json isn't the one that state.json names.

    wanted  its digest, by state.json
    sizes   bytes of the files, by state.json
    """
    try:
        content = (folder / TENSORS).read_bytes()
    except OSError as error:
        raise WeightsError(folder, f"it is damaged: {TENSORS} can't be read ({error})", REMEDY) from None
    if digest(content) != wanted:
        raise WeightsError(folder, f"it is damaged: {TENSORS} isn't as it was written", REMEDY)
    try:
        index = parsed(json.loads(content))
        check_index(index, sizes)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise WeightsError(folder, f"its {TENSORS} isn't a checkpoint's ({error!r})", REMEDY) from None
    return index


def parsed(data: dict) -> Index:
    names = [plain_name(name) for name in data["files"]]
    found = {}
    for key, (dtype, shape, chunks) in data["tensors"].items():
        made = tuple(
            SavedChunk(names[whole(number)], whole(start), whole(crc), wholes(offsets), wholes(sizes))
            for number, start, crc, offsets, sizes in chunks
        )
        found[key] = SavedTensor(DTYPES[dtype], wholes(shape), made)
    return found


def check_index(index: Index, sizes: Mapping[str, int]) -> None:
    """ValueError where chunks don't make up their tensors, or their files."""
    stretches: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes if name != TENSORS}
    for key, tensor in index.items():
        for chunk in tensor.chunks:
            inside = all(o + s <= n for o, s, n in zip(chunk.offsets, chunk.sizes, tensor.shape, strict=True))
            if not inside:
                raise ValueError(f"{key} has a chunk outside of it")
            stretches[chunk.file].append((chunk.start, chunk.start + tensor.bytes_of(chunk)))
        if sum(math.prod(chunk.sizes) for chunk in tensor.chunks) != math.prod(tensor.shape):
            raise ValueError(f"the chunks of {key} aren't all of it")
    for name, parts in stretches.items():
        end = 0
        for start, stop in sorted(parts):
            if start != end:
                raise ValueError(f"the chunks in {name} leave a gap or overlap")
            end = stop
        if end != sizes[name]:
            raise ValueError(f"the chunks in {name} have {end} bytes of {sizes[name]}")


def plain_name(name: object) -> str:
    """A file's name without any folder in it."""
    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name) or name.strip(".") == "":
        raise ValueError(f"{name!r} isn't a file's name")
    return name


def whole(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} isn't a number of at least 0")
    return number


def wholes(numbers: Sequence[object]) -> tuple[int, ...]:
    return tuple(whole(number) for number in numbers)


def metadata(index: Index) -> Metadata:
    """The same for DCP's planner."""
    entries = {}
    for key, tensor in index.items():
        chunks = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in tensor.chunks]
        properties = TensorProperties(dtype=tensor.dtype)
        entries[key] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
    stored = {MetadataIndex(key, chunk.offsets): (tensor, chunk) for key, tensor, chunk in chunks_of(index)}
    return Metadata(state_dict_metadata=dict(entries), storage_data=stored)
