"""Weights written as Hugging Face has them come back: into a program, and through transformers' from_pretrained."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor

from autoplan.errors import CheckpointError, InputsError, WeightsError
from autoplan.runtime.program import Program
from autoplan.runtime.weights.manifest import MANIFEST
from autoplan.runtime.weights.writing import split
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled, slow

PLANS = (dict(dp=4, zero=3), dict(tp=2, dp=2, zero=1), dict(pp=2, tp=2))


def new_program(plan: dict) -> Program:
    return Program(tiny.spec(**plan), tiny.program(plan.get("pp", 1)))


def written(
    rank: int, world: int, plan: dict, folder: str, dtype: torch.dtype | None, most: int
) -> Mapping[str, Tensor]:
    with new_program(plan) as program:
        program.load_weights(tiny.reference(2).state_dict())
        program.save_weights(folder, dtype, most)
        return dict(program.full_state_dict())


def read(rank: int, world: int, plan: dict, folder: str) -> Mapping[str, Tensor]:
    with new_program(plan) as program:
        program.load_weights(folder)
        return dict(program.full_state_dict())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_file_holds_original_names_a_tied_one_once(pool: RankPool, tmp_path: Path) -> None:
    wanted = pool.run(written, PLANS[1], str(tmp_path), None, 10**9)[0]
    assert names_in(tmp_path) == [MANIFEST, "model.safetensors"]
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys() - {"head.weight"}
    assert all(torch.equal(found[name], wanted[name]) for name in found)
    module = tiny.reference(2)
    for parameter in module.parameters():
        parameter.data.zero_()
    load_model(module, tmp_path / "model.safetensors")
    assert all(torch.equal(value, wanted[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("plan", sampled(PLANS, [PLANS[0], PLANS[2]]), ids=str)
def test_several_files_have_an_index_and_are_read_by_another_plan(pool: RankPool, tmp_path: Path, plan: dict) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model_ema.safetensors").write_text("the user's own")
    wanted = pool.run(written, plan, str(tmp_path), None, 500)[0]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 4 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    others = [MANIFEST, "config.json", "model.safetensors.index.json", "model_ema.safetensors"]
    assert names_in(tmp_path) == sorted([*files, *others])
    assert index["metadata"]["total_size"] == sum(wanted[n].nbytes for n in index["weight_map"])
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, "pt") as opened:
            assert torch.equal(opened.get_tensor(name), wanted[name])
    other = PLANS[(PLANS.index(plan) + 1) % len(PLANS)]
    found = pool.run(read, other, str(tmp_path))[0]
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_another_dtype_is_rounded_once(pool: RankPool, tmp_path: Path) -> None:
    wanted = pool.run(written, PLANS[0], str(tmp_path), torch.bfloat16, 10**9)[0]
    found = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], wanted[name].bfloat16()) for name in found)


def test_a_file_takes_as_many_as_fit_and_at_least_one() -> None:
    sizes = {"a": 3, "b": 2, "c": 9, "d": 1, "e": 4}
    tensors = [(name, (torch.uint8, (size,))) for name, size in sizes.items()]
    assert [[name for name, _ in group] for group in split(tensors, 5)] == [["a", "b"], ["c"], ["d", "e"]]


def refused(rank: int, world: int, folder: str, full: int) -> tuple[str, str, list[str]]:
    with new_program(PLANS[0]) as program:
        program.load_weights(tiny.reference(5).state_dict())
        said = []
        for dtype, error in ((torch.int8, InputsError), (None, CheckpointError)):
            with patch("os.pwrite", cut_off if rank == full else os.pwrite):
                try:
                    program.save_weights(folder, dtype, 500)
                except error as caught:
                    said.append(str(caught))
        dist.barrier()
        return said[0], said[1], sorted(path.name for path in Path(folder).iterdir())


def cut_off(descriptor: int, data: bytes, offset: int) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("full", [slow(0), 2])
def test_a_full_disk_leaves_what_was_there(pool: RankPool, tmp_path: Path, full: int) -> None:
    wanted = pool.run(written, PLANS[0], str(tmp_path), None, 10**9)[0]
    for dtype, disk, left in pool.run(refused, str(tmp_path), full):
        assert "it isn't a floating dtype of safetensors" in dtype
        assert f"rank {full}: [Errno 28] No space left on device" in disk and "what was there before is whole" in disk
        assert left == [MANIFEST, "model.safetensors"]
    found = pool.run(read, PLANS[0], str(tmp_path))[0]
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def damaged(rank: int, world: int, folder: str, places: list[int]) -> list[str]:
    """What each load says, on this rank, where a bit is flipped at one place after another."""
    file, said = Path(folder) / "model.safetensors", []
    with patch("autoplan.ir.checksums.STRETCH_BYTES", 64), new_program(PLANS[0]) as program:
        program.load_weights(tiny.reference(2).state_dict())
        program.save_weights(folder)
        before = dict(program.full_state_dict())
        for place in places:
            if rank == 0:
                flip(file, place)
            dist.barrier()
            try:
                program.load_weights(folder)
            except WeightsError as error:
                said.append(str(error))
            dist.barrier()
            if rank == 0:
                flip(file, place)
        dist.barrier()
        after = dict(program.full_state_dict())
        assert all(torch.equal(after[name], before[name]) for name in before)
        program.load_weights(folder)
    return said


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)


def test_a_flipped_bit_is_told_by_all_whoever_has_read_it(pool: RankPool, tmp_path: Path) -> None:
    """The ranks share the work: each of these bytes lies in a stretch of another rank's."""
    places = [-1 - 64 * number for number in range(5)]
    for said in pool.run(damaged, str(tmp_path), places):
        assert len(said) == len(places)
        assert all("it is damaged, or not what was saved there: bytes" in text for text in said)
