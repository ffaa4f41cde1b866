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


EXPORTS = next(command for command in COMMANDS if "out/llama" in command)
ASKS = [command for command in COMMANDS if command[0] in ("what-if", "compare")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's export lies, for the commands that read it."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(EXPORTS) == 0
    return folder


@pytest.mark.parametrize("command", ASKS, ids=" ".join)
def test_an_exported_plan_is_asked_again(command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(command) == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in (EXPORTS, *ASKS)], ids=" ".join)
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


def test_continuous_integration_runs_the_first_commands_in_their_order() -> None:
    first = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert first == script == ["make demo", "make test"]
