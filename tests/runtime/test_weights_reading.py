"""Two safetensors files of 1.5 GB are read by four processes: each reads, and holds, its own slices and little else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from autoplan.options import Training
from autoplan.runtime.program import Program
from autoplan.runtime.weights.loading import in_source
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny

WIDTH, HIDDEN = 4096, 15360
TRAINING = Training(precision="fp32", compile=False)
MORE = 1.10


def write(folder: Path) -> int:
    """A layer's tensors in each of two files, with an index; their bytes."""
    where, total = {}, 0
    generator = torch.Generator().manual_seed(0)
    for layer in range(tiny.LAYERS):
        shapes: dict[str, tuple[int, ...]] = {"scale": (WIDTH,), "bias": (HIDDEN,), "down.weight": (WIDTH, HIDDEN)}
        shapes["gate_up.weight"] = (2 * HIDDEN, WIDTH)
        tensors = {f"layers.{layer}.{n}": torch.rand(shape, generator=generator) for n, shape in shapes.items()}
        if layer == 0:
            tensors |= {"embed.weight": torch.rand(tiny.VOCAB, WIDTH), "shift": torch.rand(WIDTH)}
        file = f"model-{layer + 1:05d}-of-00002.safetensors"
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
        total += sum(t.nbytes for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return total


def read_bytes() -> int:
    """What this process has asked of files so far. Memory that maps a file doesn't count here; nothing maps one."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def memory_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


@contextmanager
def large() -> Iterator[None]:
    with patch.multiple(tiny, WIDTH=WIDTH, HIDDEN=HIDDEN):
        yield


def load(rank: int, world: int, folder: str) -> tuple[int, int, int, bool]:
    """Bytes of this rank's slices, those read, those held beyond what was before; whether values are right."""
    with large(), Program(tiny.spec(tp=4, training=TRAINING), tiny.program(1)) as program:
        slices = sum(h.values.nbytes for h in program.held)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        held, read = memory_bytes("VmRSS"), read_bytes()
        program.load_weights(folder)
        read, held = read_bytes() - read, memory_bytes("VmHWM") - held
        return slices, read, held, all(right(program, folder, name) for name in ("gate_up", "down"))


def right(program: Program, folder: str, name: str) -> bool:
    for held in program.held:
        if f"layers.1.{name}" in held.name:
            with safe_open(Path(folder) / "model-00002-of-00002.safetensors", "pt") as file:
                if not torch.equal(file.get_slice(held.stored.source)[in_source(held).slices], held.values):
                    return False
    return True


@pytest.mark.slow
def test_each_rank_reads_and_holds_its_slices_alone(tmp_path: Path) -> None:
    total = write(tmp_path)
    assert total > 1.5e9
    with RankPool(4, timeout_s=300) as pool:
        found = pool.run(load, str(tmp_path))
    for slices, read, held, values in found:
        print(f"slices {slices / 1e6:.1f} MB, read {read / 1e6:.1f} MB, held {held / 1e6:.1f} MB")
        assert values
        assert slices < 0.26 * total
        assert slices <= read <= MORE * slices
        assert held <= MORE * slices
