"""Programs on an accelerator that isn't CUDA's: a fake one, whose tensors have values (``tests/fixtures/npu``).

Plans for Ascend devices train on two ranks of it, unchanged, and then on the CPU: both reach the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from autoplan.options import Inference, Parallelism, Training
from autoplan.plan import Plan
from autoplan.verify.variants import in_float64
from tests.fixtures.npu.build import site
from tests.support import zoo
from tests.support.planning import parallelize_alone

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")]
CLIPPED = Training(compile=False, clip_grad_norm=0.5)
HALVES = "bf16"
PLANS: dict[str, tuple[Parallelism, Training | Inference]] = {
    "data": (Parallelism(dp=2, zero=1), Training(clip_grad_norm=0.5)),  # compiled where there is a compiler
    "tensor": (Parallelism(tp=2), Training(compile=False, randomness="per-rank")),
    "pipeline": (Parallelism(pp=2, zero=1, micro_batch=2), CLIPPED),
    "sharded": (Parallelism(dp=2, zero=3), CLIPPED),
    "host optimizer": (Parallelism(dp=2, zero=1, offload="optimizer"), CLIPPED),
    "host parameters": (Parallelism(dp=2, zero=3, offload="parameters"), CLIPPED),
    "host activations": (Parallelism(dp=2, offload="activations"), CLIPPED),
    HALVES: (Parallelism(dp=2, zero=2), Training(compile=False, precision="bf16-mixed")),
    "inference": (Parallelism(tp=2), Inference(compile=False)),
}
TRAINED = [name for name in PLANS if name not in ("inference", HALVES)]
Found = Callable[[str], tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with what each plan did on either kind of device, and what was said there on stderr."""
    place = tmp_path_factory.mktemp("device")
    module, batch, _ = zoo.small("gpt2", layers=2, dropout=0.1)
    save_file(batch, place / "batch.safetensors")
    folders = []
    for name, (parallelism, training) in PLANS.items():
        inputs = batch if isinstance(training, Training) else {"input_ids": batch["input_ids"]}
        plan = parallelize_alone(module, "1x2 ascend-910b", inputs, training=training, parallelism=parallelism)
        exported = plan if name == HALVES else Plan(in_float64(plan.record), given=plan.given)
        folders.append(str(exported.export(place / name)))
    said = {}
    for where, path in {"npu": [str(site())], "cpu": []}.items():
        (place / where).mkdir()
        command = [sys.executable, "-m", "tests.support.on_device", "2", str(place / "batch.safetensors")]
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), *path])}
        command += [str(place / where), *folders]
        ended = subprocess.run(command, env=surroundings, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-3000:]
        said[where] = ended.stderr
    return place, said


@pytest.fixture(scope="module")
def found(ran: tuple[Path, dict[str, str]]) -> Found:
    """What a plan did on the fake accelerator, and on the CPU."""
    return lambda name: tuple(torch.load(ran[0] / where / f"{name}.pt") for where in ("npu", "cpu"))


@pytest.mark.parametrize("name", TRAINED)
def test_a_plan_trains_on_the_accelerator_as_on_the_cpu(found: Found, name: str) -> None:
    there, here = found(name)
    assert (there["device"], here["device"]) == ("npu:0", "cpu")
    assert there["backend"] == "cpu:gloo,npu:hccl"
    assert there["losses"] == pytest.approx(here["losses"], rel=1e-10)
    assert there["evaluated"] == pytest.approx(here["evaluated"], rel=1e-10)
    for kind in ("gradients", "state"):
        assert there[kind].keys() == here[kind].keys()
        for key, value in here[kind].items():
            torch.testing.assert_close(there[kind][key], value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", [*TRAINED, HALVES])
def test_a_checkpoint_of_the_accelerator_is_taken_up_there(found: Found, name: str) -> None:
    """Parameters, the optimizer's state where its kernel wants it, and the device's own random state."""
    there, _ = found(name)
    assert there["repeated"] == there["losses"][1]
    assert torch.equal(*there["drawn"])
    assert there["stepped"] == pytest.approx(there["losses"][2], rel=1e-10)


def test_masters_in_float32_beside_halves(found: Found) -> None:
    """Products of halves round otherwise in the two kinds of kernels."""
    there, here = found(HALVES)
    assert there["losses"] == pytest.approx(here["losses"], rel=2**-9)


def test_the_forward_alone(found: Found) -> None:
    there, here = found("inference")
    assert there["device"] == "npu:0"
    torch.testing.assert_close(there["output"], here["output"], rtol=1e-10, atol=1e-10)


def test_a_measurement_has_the_device_by_name_and_its_peak(found: Found) -> None:
    there, here = found("data")
    assert there["name"] == "Ascend910B3" and here["name"] == "cpu"
    assert all(peak > 0 for name in TRAINED for peak in found(name)[0]["peaks"]) and here["peaks"] == []


def test_what_lies_on_the_host_takes_no_memory_of_the_device(found: Found) -> None:
    least = {name: max(found(name)[0]["held"]) for name in ("sharded", "host parameters", "data", "host optimizer")}
    assert least["host parameters"] < least["sharded"] and least["host optimizer"] < least["data"]


def test_segments_run_eagerly_where_there_is_no_compiler_and_that_is_told(ran: tuple[Path, dict[str, str]]) -> None:
    assert ran[1]["npu"].count("autoplan: note: torch.compile has no kernels for npu here") == 1
    assert "torch.compile" not in ran[1]["cpu"]


def test_a_rehearsal_has_its_own_device_beside_it(ran: tuple[Path, dict[str, str]]) -> None:
    assert "rehearsed: ok" in ran[1]["npu"]


def test_more_ranks_than_devices_name_the_variable_that_shows_more(tmp_path: Path) -> None:
    code = "from autoplan.runtime.elastic.launch import own_device; own_device(on_processors=False)"
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(site())])}
    surroundings |= {"ASCEND_RT_VISIBLE_DEVICES": "0", "LOCAL_RANK": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True)
    assert "shows 1 of npu. start at most 1 on a machine, or have ASCEND_RT_VISIBLE_DEVICES show more" in ended.stderr
