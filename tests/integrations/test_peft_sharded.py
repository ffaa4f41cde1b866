"""LoRA adapters of peft's in transformers' Trainer, of a base that is sharded: what is saved is one process's."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from safetensors.torch import load_file

import autoplan
from autoplan.integrations.transformers import training_of
from tests.support import peft_loop as loop
from tests.support.forked import run_ranks, run_script
from tests.support.planning import parallelize_unproved
from tests.support.sampling import sampled

WAYS = {"zero1": {"dp": 2, "zero": 1}, "zero3": {"dp": 2, "zero": 3}, "tp": {"tp": 2}, "pp": {"pp": 2}}
ADAPTERS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    """What transformers' own Trainer saves on one device."""
    folder = tmp_path_factory.mktemp("one")
    done = run_script(Path(shutil.copy(loop.__file__, folder)), [str(folder / "run"), "1"])
    assert done.returncode == 0, done.stderr
    return load_file(folder / "run" / "final" / ADAPTERS)


@pytest.mark.parametrize("way", sampled([*WAYS], ["tp"]))
def test_adapters_are_one_process_s(way: str, one: Mapping[str, torch.Tensor], tmp_path: Path) -> None:
    ids = torch.zeros(loop.ROWS, loop.TOKENS, dtype=torch.int64)
    plan = parallelize_unproved(
        loop.adapted(), "1x2 cpu", {"input_ids": ids, "labels": ids}, effort="fast",
        training=training_of(loop.arguments(str(tmp_path))), parallelism=autoplan.Parallelism(**WAYS[way]),  # type: ignore[arg-type]
    )  # fmt: skip
    plan.verify()
    folder, ranks = plan.export(tmp_path / "plan"), str(WAYS[way].get("dp", 1))
    script = Path(shutil.copy(loop.__file__, tmp_path))
    for done in run_ranks(script, 2, [str(tmp_path / "run"), ranks, str(folder)]):
        assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "run" / "final" / ADAPTERS)
    assert found.keys() == one.keys() and any("lora_A" in name for name in found)
    assert not (tmp_path / "run" / "final" / "model.safetensors").exists()
    for name, value in one.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-6)
