"""The tutorial's code, as the notebook's cells, runs from first to last in an empty folder, and trains a model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.bench.notebook import NOTEBOOK, TUTORIAL, notebook
from tests.support.forked import in_fork


@pytest.mark.slow
@in_fork
def test_the_tutorial_trains_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "tutorial"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["losses"][0] == pytest.approx(math.log(names["LETTERS"]), rel=0.1) and names["losses"][-1] < 3.0
    for exported in ("plan.json", "program.py", "report.html", "train.py"):
        assert (tmp_path / "out" / "gpt" / exported).is_file()
    with torch.no_grad():  # the module that was read back computes what the program did
        batch = names["batch_of"](names["text"], torch.Generator().manual_seed(1))
        assert names["model"](**batch)[1] < 3.0


def test_the_notebook_is_the_tutorial() -> None:
    written = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert written == notebook(TUTORIAL), "run python -m tests.bench.notebook"
