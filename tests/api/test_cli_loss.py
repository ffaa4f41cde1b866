"""--loss: which functions it names, and what is said of those that it doesn't."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import autoplan.cli as cli
from autoplan.cli.loss import loss_named
from autoplan.errors import InputsError

FILE = """
import torch
from torch import nn
def make_model(): return nn.Linear(8, 4)
def example_inputs(): return torch.zeros(8, 8), torch.zeros(8, 4)
def loss_fn(output, target): raise ValueError("not this one")
def scaled(output, target): return 3 * (output - target).square().mean()
number = 3
"""


def test_a_loss_of_torch_and_one_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(FILE)
    assert loss_named("cross_entropy") is F.cross_entropy and loss_named("mse_loss") is F.mse_loss
    assert loss_named(f"{tmp_path / 'losses.py'}:scaled")(torch.ones(2), torch.zeros(2)) == 3


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("mse", "no such function of an input and a target. did you mean mse_loss"),
        ("relu", "no such function"),
        ("_stacklevel", "no such function"),
        ("losses.txt:scaled", "names no function of a file"),
        ("lost.py:scaled", "there is no such file"),
        ("losses.py:lost", "the file has no 'lost'"),
        ("losses.py:number", "it can't be called"),
    ],
)
def test_what_names_no_loss(text: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losses.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputsError, match=cause):
        loss_named(text)


def test_it_is_planned_with_before_the_files_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    model = f"{tmp_path / 'mine.py'}:make_model"
    asked = ["plan", "--model", model, "--cluster-spec", "1x2 cpu", "--effort", "fast", "--parallelism", "ddp"]
    assert cli.main([*asked, "--verbose", "--loss", "mse_loss", "--export", str(tmp_path / "out")]) == 0
    assert "mse_loss" in (tmp_path / "out" / "program.py").read_text() or "pow" in capsys.readouterr().out
    assert cli.main(asked) == 2 and "not this one" in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path / "out"), "1x2 cpu", "--loss", "mse_loss"]) == 2
    assert "a plan's loss is what it was traced with" in capsys.readouterr().err
