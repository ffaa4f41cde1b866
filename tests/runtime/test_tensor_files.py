"""Boxes of tensors from safetensors files: the library's values, by exactly the bytes of the box."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from autoplan.errors import WeightsError
from autoplan.runtime.parallel.own_box import Part, whole
from autoplan.runtime.weights import tensor_files
from autoplan.runtime.weights.tensor_files import FileTensor, header_bytes, read_box, read_header, stretches, write_box


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Part]:
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    start = tuple(draw(st.integers(0, size - 1)) for size in shape)
    sizes = tuple(draw(st.integers(1, size - first)) for size, first in zip(shape, start, strict=True))
    return shape, Part(start, sizes)


@given(boxes())
def test_stretches_are_the_box_in_its_order(box: tuple[tuple[int, ...], Part]) -> None:
    shape, part = box
    values = torch.arange(max(1, torch.Size(shape).numel())).view(shape)
    length, starts = stretches(shape, part)
    found = [index for start in starts for index in range(start, start + length)]
    assert found == values[part.slices].flatten().tolist()


@settings(max_examples=30)
@given(boxes(), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.integers(1, 20))
def test_a_box_is_read_into_memory_of_any_dtype(
    tmp_path_factory: pytest.TempPathFactory, box: tuple[tuple[int, ...], Part], dtype: torch.dtype, elements: int
) -> None:
    shape, part = box
    file = tmp_path_factory.mktemp("box") / "w.safetensors"
    values = torch.randn(shape)
    save_file({"other": torch.ones(3), "it": values}, file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_files, "BUFFER_BYTES", 4 * elements)
        assert torch.equal(read(file, "it", part, dtype), values[part.slices].to(dtype))


def read(file: Path, name: str, part: Part, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(part.shape, dtype=dtype)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        read_box(descriptor, read_header(file)[name], part, out)
    finally:
        os.close(descriptor)
    return out


def test_a_transposed_target_gets_its_values_too(tmp_path: Path) -> None:
    values = torch.randn(6, 4)
    save_file({"it": values}, tmp_path / "w.safetensors")
    out = torch.empty(4, 3).t()
    descriptor = os.open(tmp_path / "w.safetensors", os.O_RDONLY)
    read_box(descriptor, read_header(tmp_path / "w.safetensors")["it"], Part((1, 0), (3, 4)), out)
    os.close(descriptor)
    assert torch.equal(out, values[1:4])


def test_columns_are_read_by_their_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(64, 32)
    save_file({"it": values}, tmp_path / "w.safetensors")
    count = [0]
    real = os.preadv

    def counted(descriptor: int, buffers: list, offset: int) -> int:
        count[0] += sum(len(buffer) for buffer in buffers)
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    for dtype in (torch.float32, torch.bfloat16):
        count[0] = 0
        read(tmp_path / "w.safetensors", "it", Part((0, 8), (64, 8)), dtype)
        assert count[0] == 64 * 8 * 4


def test_a_file_written_in_boxes_is_the_library_s(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(6, 8), "half": torch.randn(5).bfloat16(), "one": torch.randn(())}
    tensors["none"] = torch.zeros(0, 3)
    file = tmp_path / "w.safetensors"
    header = header_bytes({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    file.write_bytes(header)
    places = read_places(file, tensors, len(header))
    descriptor = os.open(file, os.O_WRONLY)
    for name, value in tensors.items():
        if name != "matrix":
            write_box(descriptor, places[name], whole(tuple(value.shape)), value)
    for part in (Part((0, 0), (6, 3)), Part((0, 3), (2, 5)), Part((2, 3), (4, 5))):
        write_box(descriptor, places["matrix"], part, tensors["matrix"][part.slices])
    os.close(descriptor)
    found = load_file(file)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def read_places(file: Path, tensors: dict[str, torch.Tensor], offset: int) -> dict[str, FileTensor]:
    places = {}
    for name, value in tensors.items():
        places[name] = FileTensor(file, value.dtype, tuple(value.shape), offset)
        offset += places[name].bytes
    return places


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "it has 0 bytes, too few for its header"),
        (5, "it has 5 bytes, too few for its header"),
        (40, "it has 40 bytes, too few for its header"),
        (-1, "it is cut off: it has"),
        (-4000, "it is cut off: it has"),
    ],
)
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, size: int, said: str) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"it": torch.randn(64, 32)}, file)
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    with pytest.raises(WeightsError, match=said):
        read_header(file)


def test_something_else_is_named(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes((20).to_bytes(8, "little") + b"x" * 100)
    with pytest.raises(WeightsError, match="it isn't a safetensors file"):
        read_header(file)
    entry = b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}'
    file.write_bytes(len(entry).to_bytes(8, "little") + entry + b"x" * 100)
    with pytest.raises(WeightsError, match="a tensor of 12 bytes at 0 to 8"):
        read_header(file)


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"it": torch.randn(64, 32)}, file)
    tensor = read_header(file)["it"]
    os.truncate(file, 1000)
    descriptor = os.open(file, os.O_RDONLY)
    with pytest.raises(WeightsError, match="it ends at byte 1000, within a tensor"):
        read_box(descriptor, tensor, whole((64, 32)), torch.empty(64, 32))
    os.close(descriptor)
