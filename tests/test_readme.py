"""What the README shows runs: its Python as it stands, its commands on a small cluster in this process."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from autoplan import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in blocks("sh")
    for line in block.splitlines()
    if line.startswith("autoplan ")
]


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "out" / "mlp" / "program.py").is_file()
    assert callable(names["train"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_is_one(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = cli.parser().parse_args(command)
    if "cpu" in getattr(options, "cluster", ""):
        monkeypatch.chdir(tmp_path)
        assert cli.main(command) == 0
        assert options.export is None or (tmp_path / options.export / "train.py").is_file()


def test_every_file_it_names_is_there() -> None:
    named = re.findall(r"`((?:docs|examples|cost_models|autoplan)/[\w./-]+)`", README)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("target", re.findall(r"make ([a-z-]+)", README))
def test_every_target_it_names_is_one(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
