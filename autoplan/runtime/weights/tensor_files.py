"""safetensors files read and written by boxes of their tensors, with exactly the bytes of the box.

A file is the length of its header (8 bytes, little-endian), the header, which is JSON, and the tensors' bytes, each
row-major (https://github.com/huggingface/safetensors, "Format"). The library maps a file into memory, where a slice of
columns touches, and so reads, every page of the tensor. Here the stretches of a box that lie together in the file are
read by one ``pread`` each, straight into the memory of the parameter where that has the file's dtype: a slice of rows
is one, a slice of columns one for each row. A disk's pages that hold several ranks' columns are read from it once and
then come from the page cache, which is no rank's memory.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.runtime.parallel.own_box import Part

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
MOST_HEADER_BYTES = 100_000_000  # the library's own limit
BUFFER_BYTES = 4 * 2**20  # what is held of a tensor while it is converted to another dtype or device
REMEDY = "fetch or write the file again"


@dataclass(frozen=True)
class FileTensor:
    """One tensor in a file: ``offset`` bytes from the file's start."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: Path) -> dict[str, FileTensor]:
    """The tensors of a safetensors file by name; WeightsError where it isn't one, or isn't whole.

    As strict as the library: tensors lie one after another, without a gap, from the header's end to the file's.
    """
    return parsed(file)[0]


def read_metadata(file: Path) -> dict[str, str]:
    """The __metadata__ of a safetensors file; empty where it isn't one."""
    try:
        return parsed(file)[1]
    except WeightsError:
        return {}


def parsed(file: Path) -> tuple[dict[str, FileTensor], dict[str, str]]:
    if not file.is_file():
        raise WeightsError(file, "it isn't a file", REMEDY)
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise WeightsError(file, f"it has {size} bytes, too few for its header", REMEDY)
        if length > MOST_HEADER_BYTES:
            raise WeightsError(file, f"a header of {length} bytes, where the format has {MOST_HEADER_BYTES}", REMEDY)
        text = stream.read(length)
    try:
        entries = json.loads(text.decode(), object_pairs_hook=without_duplicates)
        metadata = texts(entries.pop("__metadata__", {}))
        found = {name: entry_of(file, name, entry, 8 + length) for name, entry in entries.items()}
        end = check_order(found, 8 + length)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(file, f"it isn't a safetensors file ({error!r})"[:400], REMEDY) from None
    if end > size:
        raise WeightsError(file, f"it is cut off: it has {size} bytes of {end}", REMEDY)
    if end < size:
        raise WeightsError(file, f"its tensors end at byte {end}, the file at {size}", REMEDY)
    return found, metadata


def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; ValueError where a name stands twice, of which json would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in the header")
    return found


def texts(data: object) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise ValueError("its __metadata__ aren't texts by name")
    return data


def entry_of(file: Path, name: str, entry: Mapping, start: int) -> FileTensor:
    """One tensor of a header; ``start``: where the data begin in the file."""
    first, last = whole_numbers(entry["data_offsets"], name)
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name} has the dtype {entry['dtype']!r}, of {', '.join(DTYPES)}")
    if entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name} has {sorted(entry)}")
    tensor = FileTensor(file, DTYPES[entry["dtype"]], tuple(whole_numbers(entry["shape"], name)), start + first)
    if tensor.bytes != last - first:
        raise ValueError(f"{name}: a tensor of {tensor.bytes} bytes at {first} to {last}")
    return tensor


def whole_numbers(values: object, name: str) -> list[int]:
    """Of 0 or more, as sizes and places are; bool is an int in Python, and 1.0 isn't one."""
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{name} has {values!r} where whole numbers of 0 or more belong")
    return values


def check_order(tensors: Mapping[str, FileTensor], start: int) -> int:
    """Where the last tensor ends; ValueError where two overlap, or something lies between them."""
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].bytes)):
        if tensor.offset != end:
            said = "within the tensor before it" if tensor.offset < end else "behind a gap"
            raise ValueError(f"{name} begins at byte {tensor.offset}, {said}, which ends at {end}")
        end += tensor.bytes
    return end


def header_bytes(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The start of a file of these tensors, one after another; a multiple of 8 bytes, as the library has it."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        first, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [first, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def stretches(shape: tuple[int, ...], part: Part) -> tuple[int, Iterator[int]]:
    """A box of a row-major tensor as stretches that lie together: elements of each, and where each begins, in the
    box's own order."""
    cut = len(shape)
    while cut and part.shape[cut - 1] == shape[cut - 1]:
        cut -= 1
    outer = max(cut - 1, 0)  # dims from ``outer`` on lie together
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    first = sum(start * stride for start, stride in zip(part.start, strides, strict=True))
    steps = [range(0, part.shape[d] * strides[d], strides[d]) for d in range(outer)]
    return math.prod(part.shape[outer:]), (first + sum(at) for at in product(*steps))


def read_box(descriptor: int, tensor: FileTensor, part: Part, out: Tensor) -> None:
    """A box of a tensor into ``out``, of the box's shape and any dtype and device. WeightsError where the file ends."""
    length, starts = stretches(tensor.shape, part)
    if not out.numel():
        return
    if out.device.type == "cpu" and out.dtype == tensor.dtype and out.is_contiguous():
        memory, size = memory_of(out), length * tensor.dtype.itemsize
        for i, start in enumerate(starts):
            read_at(descriptor, tensor, start, memory[i * size : (i + 1) * size])
        return
    flat = out.view(-1) if out.is_contiguous() else out.new_empty(out.shape).view(-1)
    buffer = torch.empty(min(flat.numel(), BUFFER_BYTES // tensor.dtype.itemsize), dtype=tensor.dtype)
    memory, done, filled = memory_of(buffer), 0, 0
    for start, count in pieces(length, starts, len(buffer)):
        if filled + count > len(buffer):
            flat[done : done + filled].copy_(buffer[:filled])
            done, filled = done + filled, 0
        size = tensor.dtype.itemsize
        read_at(descriptor, tensor, start, memory[filled * size : (filled + count) * size])
        filled += count
    flat[done : done + filled].copy_(buffer[:filled])
    if not out.is_contiguous():
        out.copy_(flat.view(out.shape))


def pieces(length: int, starts: Iterator[int], most: int) -> Iterator[tuple[int, int]]:
    """(start, elements) of stretches, the long ones cut."""
    for start in starts:
        for at in range(0, length, most):
            yield start + at, min(most, length - at)


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def read_at(descriptor: int, tensor: FileTensor, start: int, memory: memoryview) -> None:
    offset = tensor.offset + start * tensor.dtype.itemsize
    while memory:
        count = os.preadv(descriptor, [memory], offset)
        if count == 0:
            raise WeightsError(tensor.file, f"it ends at byte {offset}, within a tensor", REMEDY)
        memory, offset = memory[count:], offset + count


def write_box(descriptor: int, tensor: FileTensor, part: Part, values: Tensor) -> None:
    """A box of a tensor, on the CPU and of the file's dtype, to its place."""
    if not values.numel():
        return
    length, starts = stretches(tensor.shape, part)
    memory, size = memory_of(values.contiguous()), length * tensor.dtype.itemsize
    for i, start in enumerate(starts):
        write_at(descriptor, tensor.offset + start * tensor.dtype.itemsize, memory[i * size : (i + 1) * size])


def write_at(descriptor: int, offset: int, memory: memoryview) -> None:
    while memory:
        count = os.pwrite(descriptor, memory, offset)
        memory, offset = memory[count:], offset + count
