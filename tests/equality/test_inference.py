"""Plans of ``Inference()``: the whole result on every rank, as ``model.eval()`` computes it; nothing of training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import autoplan
from autoplan import Inference
from autoplan.errors import ForwardOnlyError, InputsError, ParallelismError, VerificationError
from autoplan.runtime.inference.inference_program import OF_TRAINING, InferenceProgram
from autoplan.runtime.program import Program
from autoplan.verify import inference as verifying
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.forwards import Batch, Planned, forward, planned
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow

CASES = [
    ("gpt2", {"dp": 2, "tp": 2, "pp": 1}),
    ("resnet", {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 2}),
    ("mlp", {"dp": 1, "tp": 4, "pp": 1}),
]


def of_zoo(folder: Path, name: str, **pinned: object) -> Planned:
    model, batch, _ = zoo.small(name, **({"dropout": 0.1} if name == "gpt2" else {}))
    inputs = {n: v for n, v in batch.items() if n != "labels"} if isinstance(batch, Mapping) else batch[:1]
    return planned(folder / "out", model, inputs, training=Inference(precision="fp64"), **pinned)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return of_zoo(tmp_path_factory.mktemp("mlp"), "mlp", dp=2, tp=2, pp=1)


@pytest.mark.parametrize(("name", "pinned"), [*map(slow, CASES[:2]), CASES[2]])
def test_the_result_is_one_devices_on_every_rank(
    pool: RankPool, tmp_path: Path, name: str, pinned: dict[str, object]
) -> None:
    plan = of_zoo(tmp_path, name, **pinned)
    batches = [plan.rows(8), plan.rows(7), plan.rows(1)]
    expected = [plan.result(batch) for batch in batches]
    for found in pool.run(forward, str(plan.folder), plan.weights, batches):
        assert [x.shape for x in found] == [x.shape for x in expected]
        assert all(torch.allclose(x, y, rtol=1e-12, atol=1e-12) for x, y in zip(found, expected, strict=True))


def own_rows(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]) -> Tensor:
    program = autoplan.load(folder).program()
    program.load_weights(weights)
    return program(batches[program.axes["dp"].rank])  # type: ignore[operator]


def test_rows_of_their_own_come_back_in_the_order_of_the_data_axis(pool: RankPool, mlp: Planned) -> None:
    parts = [mlp.rows(2), mlp.rows(5, first=2)]
    expected = mlp.result(mlp.rows(7))
    for found in pool.run(own_rows, str(mlp.folder), mlp.weights, parts):
        assert torch.allclose(found, expected, rtol=1e-12)


def state_and_memory(rank: int, world: int, folder: str, weights: Mapping[str, Tensor]) -> tuple[object, ...]:
    with autoplan.load(folder).program() as program:
        program.load_weights({name: value * 2 for name, value in weights.items()})
        doubled = dict(program.full_state_dict())
        program.init_weights()
        state = dict(program.full_state_dict())
        refused = []
        for name in OF_TRAINING:
            try:
                getattr(program, name)
            except ForwardOnlyError as error:
                refused.append(str(error))
        assert isinstance(program, InferenceProgram)
        grads = [h.parameter.requires_grad for h in program.held]
        return state, doubled, refused, any(grads), hasattr(program, "optimizer")


def test_weights_come_and_go_and_nothing_of_training_is_there(pool: RankPool, mlp: Planned) -> None:
    state, doubled, refused, gradients, optimizer = pool.run(state_and_memory, str(mlp.folder), mlp.weights)[0]
    assert state.keys() == mlp.weights.keys() and all(torch.equal(state[n], mlp.weights[n]) for n in state)
    assert all(torch.equal(doubled[name], value * 2) for name, value in state.items())
    assert len(refused) == len(OF_TRAINING) and all("runs the forward alone" in text for text in refused)
    assert not gradients and not optimizer


def test_everything_of_a_training_program_is_there_or_refused() -> None:
    names = {name for name in dir(Program) if not name.startswith("_")}
    assert names - set(OF_TRAINING) <= set(dir(InferenceProgram))


@pytest.mark.parametrize("name", ["gpt2", slow("resnet")])
@pytest.mark.usefixtures("verified_in_pool")
def test_verify_compares_the_whole_result(name: str) -> None:
    model, batch, _ = zoo.small(name)
    inputs = {n: v for n, v in batch.items() if n != "labels"} if isinstance(batch, Mapping) else batch[:1]
    plan = parallelize_alone(model, "1x2 cpu", inputs, training=Inference())
    found = plan.verify()
    assert found.passed and str(found).startswith("equal to one device, on 2 local processes in float64")
    assert "result" in str(found)


def test_verify_tells_a_result_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, _ = zoo.small("mlp")
    plan = parallelize_alone(model, "1x2 cpu", batch[:1], training=Inference())
    real = verifying.run_forward
    monkeypatch.setattr(verifying, "run_forward", lambda *given: real(*given) * (1 + 1e-9))
    with pytest.raises(VerificationError, match="NOT equal to one device"):
        plan.verify()
    assert not plan.verify(raises=False).passed


def test_verify_refuses_a_batch_that_isnt_finite() -> None:
    model, batch, _ = zoo.small("mlp")
    plan = parallelize_alone(model, "1x1 cpu", batch[:1], training=Inference())
    with pytest.raises(InputsError, match="isn't finite on one device"):
        plan.verify(batch=(batch[0] * torch.inf,))


@pytest.mark.slow
@pytest.mark.usefixtures("verified_in_pool")
def test_a_plan_of_many_ranks_is_verified_in_small() -> None:
    model, batch, _ = zoo.small("gpt2", device="meta")
    plan = parallelize_alone(
        model, "2x8 h100-sxm", {"input_ids": batch["input_ids"].repeat(2, 1)}, training=Inference()
    )
    found = plan.verify()
    assert found.passed and found.ranks <= 8 and "the same program on one rank" in found.note


@pytest.mark.slow
def test_the_exported_folder_runs(mlp: Planned, tmp_path: Path) -> None:
    save_file(dict(mlp.weights), tmp_path / "weights.safetensors")
    save_file({name: x.contiguous() for name, x in mlp.rows(5).items()}, tmp_path / "batch.safetensors")
    exported = ["plan.json", "program.py", "report.html", "run.py", "weights"]
    assert sorted(p.name for p in mlp.folder.iterdir()) == exported
    files = [f"--{n}={tmp_path / n}.safetensors" for n in ("weights", "result")]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        str(mlp.folder / "run.py"),
        *files,
    ]
    done = subprocess.run(
        [*command, f"--inputs={tmp_path / 'batch.safetensors'}"], env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and "result [5, 12]" in done.stdout, done.stderr
    assert torch.allclose(load_file(tmp_path / "result.safetensors")["result"], mlp.result(mlp.rows(5)), rtol=1e-12)


@pytest.mark.parametrize("asked", ["local-sgd", "diloco", "pipedream"])
def test_a_rule_of_updates_is_refused(asked: str) -> None:
    """There is none of them in a forward alone."""
    module, batch = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)), torch.ones(8, 8)
    with pytest.raises(ParallelismError, match=r"with Inference\(\).*a forward alone updates none"):
        autoplan.parallelize(module, "1x4 cpu", batch, training=autoplan.Inference(), parallelism=asked)
