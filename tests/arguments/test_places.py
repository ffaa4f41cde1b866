"""Files are written into folders that are made, or refused before anything is computed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autoplan.arguments.places import place_for
from autoplan.errors import InputsError
from autoplan.export.perfetto import write_trace
from autoplan.runtime.data.metrics import MetricsFile
from tests.support.hand_made import mlp
from tests.support.records import record_of


def metrics(file: Path) -> None:
    MetricsFile(file, 0).add(1, {"loss": 0.5})


def trace(file: Path) -> None:
    write_trace(record_of(mlp(), "1x2 cpu", dp=2, tp=1, pp=1), file)


@pytest.mark.parametrize("write", [metrics, trace])
def test_a_folder_is_made(write: Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / "runs" / "first" / "found.json"
    write(file)
    assert json.loads(file.read_text())


@pytest.mark.parametrize("write", [metrics, trace, place_for])
def test_a_file_in_the_folder_s_place_is_refused(write: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputsError, match="give a file"):
        write(tmp_path / "runs" / "found.json")
    assert (tmp_path / "runs").read_text() == ""


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match=re.escape(f"{tmp_path}: it is a folder. give a file's path.")):
        place_for(tmp_path)
