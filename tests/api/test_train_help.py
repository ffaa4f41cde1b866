"""``autoplan train FOLDER --help``: what train.py says of itself, by one process."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from autoplan.cli import train as command


def test_help_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    started: list[list[str]] = []
    monkeypatch.setattr(command.torchrun, "parse_args", lambda given: given)
    monkeypatch.setattr(command.torchrun, "run", started.append)
    command.train_command(argparse.Namespace(folder=str(tmp_path), max_restarts=0, rest=["--help"]))
    assert started[0][:2] == ["--nproc-per-node", "1"] and started[0][-1] == "--help"
