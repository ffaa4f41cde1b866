"""Ranks that hang, die, never come or are told to stop, under torchrun itself: what is said, and what is left."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from safetensors.torch import save_file

from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.optim.optimizer import build_optimizer
from tests.fixtures import tiny_program as tiny
from tests.support.faults_script import PLAN

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "tests" / "support" / "faults_script.py")
STEPS, SEED, LONG_S = 9, 3, 400


@pytest.fixture
def train_py(tmp_path: Path) -> str:
    text = resources.files("autoplan.emit").joinpath("templates/train.py.txt").read_text()
    (tmp_path / "train.py").write_text(text)
    return str(tmp_path / "train.py")


def environment(**further: str) -> dict[str, str]:
    quiet = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {**os.environ, **quiet, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **further}


def torchrun(
    folder: Path,
    train_py: str,
    faults: dict[int, tuple[int, int, str]],
    timeout_s: float,
    restarts: int,
) -> subprocess.CompletedProcess[str]:
    (folder / "faults.json").write_text(json.dumps(faults))
    save_file({name: value.clone() for name, value in tiny.reference().state_dict().items()}, folder / "w.safetensors")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--max-restarts",
        str(restarts), SCRIPT, train_py, str(folder / "faults.json"), "--seed", str(SEED), "--steps", str(STEPS),
        "--timeout", str(timeout_s), "--checkpoint-dir", str(folder / "c"), "--save-every", "2",
        "--metrics", str(folder / "m.jsonl"), "--weights", str(folder / "w.safetensors"),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, env=environment(), cwd=ROOT)


def losses(file: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({line["step"] for line in lines}) == len(lines)
    return {line["step"]: line["loss"] for line in lines}


def undisturbed() -> dict[int, float]:
    """What one device finds."""
    spec = tiny.spec(**PLAN)
    batch, model, found = batch_source(spec, None, SEED), tiny.reference(), {}
    optimizer = build_optimizer(model.parameters(), spec.training)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**batch(step))
        loss.backward()
        optimizer.step()
        found[step + 1] = loss.item()
    return found


@pytest.mark.slow
def test_training_goes_on_after_a_rank_hangs_and_another_dies(tmp_path: Path, train_py: str) -> None:
    """At step 4 rank 2 hangs in the script, at step 7 rank 3 is killed: torchrun starts twice again."""
    faults = {0: (2, 4, "hang"), 1: (3, 7, "die")}
    done = torchrun(tmp_path, train_py, faults, 12, 2)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [line for line in done.stderr.splitlines() if line.startswith("autoplan: error: rank 2")]
    assert len(told) == 1, done.stderr[-4000:]
    waited = "autoplan: error: rank 2 of 4: the others have waited for it for 12 s. rank 2: after step 4, "
    assert told[0].startswith(waited)
    assert re.search(r"at \S*faults_script.py:\d+ \(misbehave\); ranks 0-1, 3: step 5, forward and backward", told[0])
    assert "Traceback" not in done.stderr
    assert "another rank has ended" in done.stderr
    resumed = [int(n) for n in re.findall(r"resumed from \S+ after (\d+) steps", done.stdout)]
    assert resumed[0] in (2, 4) and resumed[1] in (4, 6)
    assert losses(tmp_path / "m.jsonl") == pytest.approx(undisturbed(), rel=1e-12)


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_told_to_say_nothing_any_more(tmp_path: Path, train_py: str) -> None:
    """torchrun gives it half a minute to hear its signal before it kills it."""
    done = torchrun(tmp_path, train_py, {0: (1, 3, "stop")}, 15, 1)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "autoplan: error: rank 1 of 4: it says nothing any more" in done.stderr


@pytest.mark.slow  # test_diverged.py has an error under torchrun, test_runtime_launch.py one rank's own
def test_a_mistake_of_one_rank_is_the_only_thing_that_is_said(tmp_path: Path, train_py: str) -> None:
    done = torchrun(tmp_path, train_py, {0: (1, 2, "mistake")}, 60, 0)
    assert done.returncode != 0
    assert "[rank 1] autoplan: error: the data: it ends. give more.\n" in done.stderr
    assert "train.py\", line" not in done.stderr


@pytest.mark.slow  # it waits for 15 s; test_rendezvous.py has who does not come, among threads
def test_a_rank_that_never_comes_is_named(tmp_path: Path, train_py: str) -> None:
    (tmp_path / "faults.json").write_text("{}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    given = environment(WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RESTART_COUNT="0")
    command = [sys.executable, SCRIPT, train_py, str(tmp_path / "faults.json"), "--timeout", "15"]
    ranks = {
        rank: subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**given, "RANK": str(rank)})
        for rank in (0, 1, 3)
    }
    try:
        found = {rank: process.communicate(timeout=LONG_S)[1] for rank, process in ranks.items()}
    finally:
        for process in ranks.values():
            process.kill()
    assert all(process.returncode == 2 for process in ranks.values()), found
    assert all("rank 2 of 4: it didn't start within 15 s; ranks 0-1, 3 did." in said for said in found.values()), found
    assert not any("Traceback" in said for said in found.values())
