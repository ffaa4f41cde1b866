"""train.py on four ranks: it trains, resumes, and tells a user's mistakes without a traceback."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from autoplan.errors import InputsError, LaunchError
from autoplan.ir.mesh import Mesh
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.elastic import launch
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.forked import run_script

PLAN = dict(dp=2, pp=2, microbatches=2, zero=1)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as ranks:
        yield ranks


@pytest.fixture
def train_py(tmp_path: Path) -> str:
    text = resources.files("autoplan.emit").joinpath("templates/train.py.txt").read_text()
    (tmp_path / "train.py").write_text(text)
    return str(tmp_path / "train.py")


def tiny_plan(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(
        record=SimpleNamespace(model=tiny.spec(**PLAN).lowered),
        check_start=lambda *given: None,
        predicted=SimpleNamespace(step_time_s=0.5, mfu=0.25),
        program=lambda timeout_s: Program(tiny.spec(**PLAN), tiny.program(2), timeout_s),
    )


def run_train(rank: int, world: int, script: str, arguments: list[str]) -> None:
    """The script as it stands, with the tiny program for the plan beside it."""
    with patch("autoplan.load", tiny_plan, create=True), patch.object(sys, "argv", [script, *arguments]):
        runpy.run_path(script, run_name="__main__")


def lines(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def weights(folder: Path) -> str:
    tensors = {name: value.clone() for name, value in tiny.reference().state_dict().items()}
    save_file(tensors, folder / "w.safetensors")
    return str(folder / "w.safetensors")


def test_train_py_equals_one_device_and_resumes(pool: RankPool, train_py: str, tmp_path: Path) -> None:
    spec = tiny.spec(**PLAN)
    batch = batch_source(spec, None, seed=3)
    model = tiny.reference()
    optimizer = build_optimizer(model.parameters(), spec.training)
    wanted = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(**batch(step))
        loss.backward()
        wanted.append(loss.item())
        optimizer.step()
    common = ["--seed", "3", "--weights", weights(tmp_path), "--checkpoint-dir", str(tmp_path / "c")]
    common += ["--save-every", "2"]
    pool.run(run_train, train_py, [*common, "--steps", "3", "--metrics", str(tmp_path / "first.jsonl")])
    pool.run(run_train, train_py, [*common, "--steps", "5", "--metrics", str(tmp_path / "second.jsonl")])
    found = [*lines(tmp_path / "first.jsonl"), *lines(tmp_path / "second.jsonl")]
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in found] == pytest.approx(wanted, rel=1e-12)
    assert all(line["tokens_per_s"] > 0 for line in found)
    assert all(line["mfu"] * line["seconds"] == pytest.approx(0.25 * line["predicted_s"]) for line in found)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [f"step-{n:08d}" for n in (3, 4, 5)]


def saved_how(rank: int, world: int, script: str, arguments: list[str]) -> list[bool]:
    """Of each checkpoint whether it was written while training went on."""
    found, save = [], Program.save_checkpoint

    def noted(program: Program, *given: object, asynchronous: bool) -> None:
        found.append(asynchronous)
        save(program, *given, asynchronous=asynchronous)  # type: ignore[arg-type]

    with patch.object(Program, "save_checkpoint", noted):
        run_train(rank, world, script, arguments)
    return found


@pytest.mark.parametrize(("flags", "wanted"), [([], [True, True, False]), (["--save-synchronously"], [False] * 3)])
def test_checkpoints_are_written_meanwhile_unless_it_is_asked_otherwise(
    pool: RankPool, train_py: str, tmp_path: Path, flags: list[str], wanted: list[bool]
) -> None:
    given = ["--weights", weights(tmp_path), "--checkpoint-dir", str(tmp_path / "c"), "--save-every", "1"]
    assert pool.run(saved_how, train_py, [*given, "--steps", "3", *flags]) == [wanted] * 4
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [f"step-{n:08d}" for n in (1, 2, 3)]


def run_train_until_told(rank: int, world: int, script: str, arguments: list[str], step: int) -> None:
    """One rank of all gets SIGTERM while it reads a batch."""

    def source(*given: object) -> Callable[[int], dict[str, torch.Tensor]]:
        batch = batch_source(*given)  # type: ignore[arg-type]

        def batch_of(number: int) -> dict[str, torch.Tensor]:
            if number == step and rank == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return batch(number)

        return batch_of

    with patch("autoplan.runtime.data.sources.batch_source", source):
        run_train(rank, world, script, arguments)


def test_a_rank_that_is_told_to_stop_has_all_save_and_end(pool: RankPool, train_py: str, tmp_path: Path) -> None:
    given = ["--weights", weights(tmp_path), "--checkpoint-dir", str(tmp_path / "c")]
    given += ["--steps", "6", "--metrics", str(tmp_path / "m.jsonl")]
    pool.run(run_train_until_told, train_py, given, 2)
    assert [line["step"] for line in lines(tmp_path / "m.jsonl")] == [1, 2, 3]
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-00000003"]
    stopped = lines(tmp_path / "m.jsonl")
    pool.run(run_train, train_py, given)
    assert [line["step"] for line in lines(tmp_path / "m.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert lines(tmp_path / "m.jsonl")[:3] == stopped


SCRIPT = """
from autoplan.ir.mesh import Mesh
from autoplan.runtime.elastic.launch import join, run_script
run_script(lambda: print(join(Mesh.of(dp=1, tp=1)).device))
"""


def test_the_wrong_number_of_processes_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        launch.join(Mesh.of(dp=4, tp=1))

    monkeypatch.setattr(sys, "argv", ["out/train.py"])
    with pytest.raises(SystemExit, match=r"^2$"):
        launch.run_script(main)
    assert capsys.readouterr().err.splitlines() == [
        "autoplan: error: 1 process: the plan needs 4 processes, there is 1. start it with torchrun --nproc-per-node 4 "
        "out/train.py (or --nnodes N --nproc-per-node 4/N)."
    ]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit, match=r"^2$"):
        launch.run_script(main)
    assert capsys.readouterr().err == ""  # the first process tells it for all


def test_a_file_that_can_t_be_had_is_told_and_another_error_of_the_system_is_none() -> None:
    found = launch.mistake_of(FileNotFoundError(2, "No such file or directory", "text.txt"))
    assert str(found).startswith("text.txt: No such file or directory.")
    with pytest.raises(OSError, match="broken"):
        launch.mistake_of(OSError("broken"))


def test_a_plan_for_one_device_needs_no_launcher(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run_script(script)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    assert done.returncode == 0 and done.stdout.startswith(device.type)


def test_a_torch_with_cuda_runs_on_the_cpu_where_there_is_no_device(tmp_path: Path) -> None:
    """As `pip install torch` gives it: the accelerator that it was built for is named whether there is one or not."""
    script = tmp_path / "train.py"
    built = "import torch\ndef built_for(check_available=False):\n"
    built += "    return None if check_available else torch.device('cuda')\n"
    script.write_text(built + "torch.accelerator.current_accelerator = built_for\n" + SCRIPT)
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


ON_A_GPU = (
    "import torch\ntorch.accelerator.current_accelerator = lambda check_available=False: torch.device('cuda')\n"
    "torch.accelerator.device_count = lambda: 1\n"
)


def test_a_plan_for_processors_runs_there_beside_an_accelerator(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_A_GPU + SCRIPT.replace("tp=1)", "tp=1), on_processors=True"))
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


def test_more_ranks_than_accelerators_are_told_without_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_A_GPU + SCRIPT)
    done = run_script(script, environment={"LOCAL_RANK": "1"})
    assert done.returncode == 2
    assert "local rank 1: each needs a device of its own, and this machine shows 1 of cuda" in done.stderr
    assert "CUDA_VISIBLE_DEVICES show more" in done.stderr and "Traceback" not in done.stderr


TASK = {"LOCAL_RANK": "1", "SLURM_LOCALID": "1", "SLURM_GPUS_PER_TASK": "a100:1"}


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        (TASK, 0),
        (TASK | {"TORCHELASTIC_RUN_ID": "none"}, None),  # torchrun's processes share their task's
        (TASK | {"SLURM_LOCALID": "0"}, None),           # a script's, too
        (TASK | {"SLURM_GPUS_PER_TASK": "2"}, None),
        ({"LOCAL_RANK": "1"}, None),
    ],
)  # fmt: skip
def test_a_task_that_is_shown_its_own_device_takes_it(
    environment: dict[str, str], number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*TASK, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda number: None)
    if number is not None:
        assert launch.own_device(on_processors=False) == torch.device("xpu", number)
        return
    with pytest.raises(LaunchError, match=r"shows 1 of xpu.*ZE_AFFINITY_MASK show more.$"):
        launch.own_device(on_processors=False)


def test_apple_s_gpu_is_refused_and_its_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("mps"))
    with pytest.raises(LaunchError, match=r"mps: Apple's GPU is one a machine.*no collective library.*as '1x4 cpu'"):
        launch.own_device(on_processors=False)
    assert launch.own_device(on_processors=True) == torch.device("cpu")


def test_a_plan_for_processors_needs_a_group_that_sends_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    assert launch.device_of("nccl", on_processors=True) == torch.device("cpu")
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(LaunchError, match="a process group of nccl: the plan is one for CPUs"):
        launch.device_of("nccl", on_processors=True)


def test_torchrun_s_count_is_in_the_error() -> None:
    with pytest.raises(LaunchError, match="the plan needs 8 processes, torchrun started 2"):
        launch.check_count(8, 2, torchrun=True)


def test_a_rank_whose_peer_has_gone_says_so_in_a_line_and_ends_at_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, threading\nfrom autoplan.runtime.elastic.launch import run_script\n"
        "def main():\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()  # a save in the background, that never ends\n"
        "    try:\n        raise RuntimeError('pair.cc:553 Connection closed by peer [127.0.0.1]:1')\n"
        "    except RuntimeError as error:\n        raise RuntimeError('forward failed') from error\n"
        "run_script(main)\n"
    )
    done = run_script(script, environment={"RANK": "3"})
    assert (done.returncode, done.stderr) == (1, "[rank 3] another rank has ended\n")


def test_other_errors_keep_their_traceback() -> None:
    def main() -> None:
        raise RuntimeError("shapes don't match")

    with pytest.raises(RuntimeError, match="shapes don't match"):
        launch.run_script(main)


@pytest.mark.parametrize(("rank", "before"), [("0", ""), ("3", "[rank 3] ")])
def test_a_mistake_that_one_rank_makes_is_told_by_it(
    rank: str, before: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def main() -> None:
        raise InputsError("a", "b", "c")

    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit, match="2"):
        launch.run_script(main)
    assert capsys.readouterr().err == f"{before}autoplan: error: a: b. c.\n"
