"""``autoplan train``: help by one process, several nodes' plans not at all; what ``plan --export`` says to run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from torch import nn

import autoplan
from autoplan.cli import main
from autoplan.cli import train as command
from autoplan.cli.planning import start_text


def test_help_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    started: list[list[str]] = []
    monkeypatch.setattr(command.torchrun, "parse_args", lambda given: given)
    monkeypatch.setattr(command.torchrun, "run", started.append)
    command.train_command(argparse.Namespace(folder=str(tmp_path), max_restarts=0, rest=["--help"]))
    assert started[0][:2] == ["--nproc-per-node", "1"] and started[0][-1] == "--help"


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("1x2 cpu", "torchrun --nproc-per-node 2 {folder}/train.py"),
        ("2x1 h100-sxm", "sh {folder}/launch/torchrun.sh HOST, on each of 2 nodes"),
    ],
)
def test_several_nodes_are_started_each_by_itself(
    cluster: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = autoplan.parallelize(nn.Linear(8, 1), cluster, (torch.empty(4, 8),), loss_fn=torch.sum, parallelism="dp")
    folder = plan.export(tmp_path / "plan")
    assert start_text(plan, folder, "train.py").startswith(said.format(folder=folder))
    started: list[list[str]] = []
    monkeypatch.setattr(command.torchrun, "parse_args", lambda given: given)
    monkeypatch.setattr(command.torchrun, "run", started.append)
    status = main(["train", str(folder)])
    nodes = plan.record.cluster.nodes
    assert (status, len(started)) == ((0, 1) if nodes == 1 else (2, 0))
    if nodes > 1:
        launcher = folder / "launch" / "torchrun.sh"
        assert launcher.is_file() and f"run {launcher} HOST on each node" in capsys.readouterr().err
