"""The kill test in short: two kills, one of them aimed at a save. ``make test-kill`` makes fifty."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from autoplan.errors import WeightsError
from autoplan.export.folder import write_folder
from autoplan.options import Parallelism
from tests.kill import case as kill
from tests.kill import elastic
from tests.kill import training as run
from tests.kill.training import Kill, Training
from tests.support import saved, zoo
from tests.support.checkpoints import make
from tests.support.planning import parallelize_alone


@pytest.mark.slow
def test_two_kills_leave_no_trace(tmp_path: Path) -> None:
    case = kill.Case("zero3", tmp_path)
    chance = random.Random(1)
    chance.choice = lambda options: "save" if options is kill.AIMED else options[0]  # type: ignore[method-assign]
    *kills, outcome = case.disturbed("disturbed", 2, chance)
    assert isinstance(outcome, kill.Outcome)
    assert all(isinstance(each, Kill) for each in kills) and any(each.saving for each in outcome.kills)
    assert len(kills) == 2 and not outcome.different


@pytest.mark.slow
def test_two_jobs_on_one_folder_never_mix(tmp_path: Path) -> None:
    case = kill.Case("zero3", tmp_path, steps=36)  # more than go by between two looks at a busy machine
    *kills, outcome = case.disturbed_together("together", 3, random.Random(3))
    assert isinstance(outcome, kill.Outcome)
    assert kills and not outcome.different


@pytest.mark.slow
def test_a_batch_scaled_to_the_ranks_takes_each_sample_once(tmp_path: Path) -> None:
    """4 ranks, 3 once one is killed, 4 again: 24, 18 and 24 rows a step, losses the module's own on these."""
    module = zoo.gpt2()
    folder = elastic.exported(tmp_path / "out", 4, module)
    found = elastic.disturbed(folder, tmp_path / "elastic", 18, most=4, per_agent=1, batch="scale")
    rows = elastic.rows_of(found.samples)
    assert found.losses.keys() == set(range(1, 19)) and rows[0] == rows[-1] == 24 and set(rows) == {24, 18}
    assert elastic.worst(found, elastic.one_device(folder, module, found.samples)) < elastic.WITHIN


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    """Under torchrun: of a central server that applies gradients as they arrive. Every parameter has in the end as many
    updates as four workers' steps, those after the last checkpoint taken anew."""
    asked = Parallelism(dp=4, tp=1, pp=1, zero=0, servers=1, ahead=2)
    module = zoo.gpt2()
    plan = parallelize_alone(module, "1x4 cpu", zoo.batch_of("gpt2"), parallelism=asked)
    training = Training(write_folder(plan.record, tmp_path / "plan", "servers", {}, plan.module), tmp_path, 18, 3)
    try:
        training.start(restarts=2)
        for steps in (5, 11):
            assert training.wait(lambda steps=steps: len(training.written()) >= steps)
            workers = training.workers()
            run.os.kill(workers[0], signal.SIGKILL)
            training.seen |= set(workers.values())
        assert training.end() == 0, (tmp_path / "said.txt").read_text()
    finally:
        training.abandon()
    assert [line["step"] for line in training.written()] == list(range(1, 19))
    updates = {key: value for key, value in saved.tensors(training.final).items() if key.endswith("/step")}
    assert updates and all(int(value) == 4 * 18 for value in updates.values()), updates


def test_a_difference_of_one_bit_is_seen(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "other", value=1 + torch.finfo(torch.float32).eps)
    assert saved.differences(tmp_path / "one", tmp_path / "one") == []
    assert saved.differences(tmp_path / "one", tmp_path / "other") == ["parameters/w"]


def test_a_truncated_checkpoint_is_seen(tmp_path: Path) -> None:
    file = make(tmp_path / "c") / "rank-0.tensors"
    file.write_bytes(file.read_bytes()[:7])
    with pytest.raises(WeightsError, match="has 7 bytes of 16"):
        saved.tensors(tmp_path / "c")


def test_the_processes_of_ranks_are_found_and_known_to_be_dead(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run(['sleep', '60'], env={'RANK': '3', 'PATH': '/usr/bin:/bin'})"
    training = Training(tmp_path, tmp_path, 1, 1)
    training.process = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not (found := training.workers()):
            time.sleep(0.01)
        assert list(found) == [3] and run.alive(found[3])
        run.os.kill(found[3], signal.SIGKILL)
        training.process.wait(60)
        assert not run.alive(found[3]) and training.ended()
    finally:
        training.abandon()


def test_a_save_is_seen_while_it_is_under_way(tmp_path: Path) -> None:
    training = Training(tmp_path, tmp_path, 1, 1)
    stale = training.checkpoints / "step-00000002.0123abcd.tmp"
    stale.mkdir(parents=True)
    run.os.utime(stale, (1.0, 1.0))
    assert training.saving(since_s=2.0) == set()
    (training.checkpoints / "step-00000004.tmp").mkdir()
    assert training.saving(since_s=2.0) == {"step-00000004.tmp"}
