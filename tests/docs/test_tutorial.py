"""The tutorial's code runs from its first block to its last, in an empty folder, and trains a model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.docs.pages import ROOT, Page
from tests.support.forked import in_fork

TUTORIAL = Page(ROOT / "docs" / "tutorial.md")


@in_fork
def test_the_tutorial_trains_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "tutorial"}
    for code in TUTORIAL.code("python"):
        exec(compile(code.text, f"{TUTORIAL.name}:{code.line}", "exec"), names)
    assert names["losses"][0] == pytest.approx(math.log(names["LETTERS"]), rel=0.1) and names["losses"][-1] < 3.0
    for exported in ("plan.json", "program.py", "report.html", "train.py"):
        assert (tmp_path / "out" / "gpt" / exported).is_file()
    with torch.no_grad():  # the module that was read back computes what the program did
        batch = names["batch_of"](names["text"], torch.Generator().manual_seed(1))
        assert names["model"](**batch)[1] < 3.0
