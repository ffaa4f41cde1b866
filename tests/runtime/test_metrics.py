"""Each step has one line, whatever was written before a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoplan.errors import InputsError
from autoplan.runtime.data.metrics import MetricsFile


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_run_takes_back_the_steps_that_it_takes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, 0)
    for step in range(1, 8):
        first.add(step, {"loss": 1.0 / step})
    with path.open("a") as file:
        file.write('{"step": 8, "lo')  # the process was killed while it wrote
    again = MetricsFile(path, 4)
    again.add(5, {"loss": 0.2})
    assert steps(path) == [1, 2, 3, 4, 5]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_from_the_beginning_begins_the_file_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n7\n')
    MetricsFile(path, 0).add(1, {"loss": 2.0})
    assert steps(path) == [1]


def test_nothing_is_written_without_a_path() -> None:
    MetricsFile(None, 0).add(1, {"loss": 2.0})


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# A project\n\nwords\n")
    for wrong in (path, tmp_path, path / "metrics.jsonl"):
        with pytest.raises(InputsError, match=r"give a file of its own"):
            MetricsFile(wrong, 0)
    assert path.read_text() == "# A project\n\nwords\n"
