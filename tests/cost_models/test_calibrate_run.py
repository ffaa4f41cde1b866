"""The command itself: on two processes, and where it can't start."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cost_models.calibrate.__main__ import main
from cost_models.calibrate.world import cluster_axes
from cost_models.hardware import load_device
from cost_models.hardware.profile import calibrated_on
from tests.support.forked import run_ranks
from tests.support.sampling import sampled

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **environment):
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=variables, cwd=ROOT)


def forked(folder, arguments):
    """What the first of two ranks says."""
    script = folder / "calibrate.py"
    script.write_text("import runpy\nrunpy.run_module('cost_models.calibrate', run_name='__main__')\n")
    return run_ranks(script, 2, arguments)[0]


def under_torchrun(folder, arguments):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return run(*torchrun, "-m", "cost_models.calibrate", *arguments)


@pytest.mark.parametrize("start", sampled([forked, under_torchrun], [forked]))
def test_two_processes_are_calibrated(tmp_path, start):
    out = tmp_path / "mine.toml"
    done = start(tmp_path, ["--out", str(out), "--seconds", "0.5"])
    assert done.returncode == 0, done.stderr
    device, links = load_device(out)
    assert calibrated_on(out) == (1, 2) and links.nic is None and device.blocking
    assert 0 < device.peak_flops_per_s["float32"] * device.matmul_efficiency < 1e13
    assert 1e-7 < device.dispatch_s < 1e-2 and device.usable_bytes > 2**28
    assert {kind for kind, _ in links.node.kinds} == {
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send"
    }  # fmt: skip
    with out.with_suffix(".csv").open() as table:
        points = list(csv.DictReader(table))
    assert {line["kind"] for line in points} >= {"matmul float32", "add", f"all-reduce {cluster_axes(1, 2)[0].name}"}
    assert all(float(line["measured_s"]) > 0 and float(line["predicted_s"]) > 0 for line in points)
    for phase in ("1x2 cpu", "operators:", "processors:", "collectives over node x2:", "on sizes not fitted", "wrote"):
        assert done.stdout.count(phase) == 1, done.stdout


@pytest.mark.parametrize(("environment", "value"), [({}, "this process"), ({"WORLD_SIZE": "1"}, "one process")])
def test_without_torchrun_it_says_how_to_start_it(environment, value, tmp_path, monkeypatch, capsys):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, count in environment.items():
        monkeypatch.setenv(name, count)
    assert main(["--out", str(tmp_path / "mine.toml")]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"{value}: links are measured between processes, which torchrun starts. "
        "Run torchrun --nproc-per-node <devices of a node> -m cost_models.calibrate --out mine.toml.\n"
    )
    assert not list(tmp_path.iterdir())


def test_nodes_of_several_sizes_are_refused(monkeypatch, capsys):
    for name, value in {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--out", "mine.toml"]) == 2
    told = capsys.readouterr().err
    assert told == "3 processes: is not a multiple of the 2 of this node. Start as many on each node.\n"


@pytest.mark.parametrize("seconds", ["-3", "0", "inf"])
def test_a_time_that_is_none_is_refused(seconds, capsys):
    with pytest.raises(SystemExit):
        main(["--out", "mine.toml", "--seconds", seconds])
    assert f"{seconds} is no time: give seconds, such as 90" in capsys.readouterr().err
