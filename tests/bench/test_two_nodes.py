"""python -m tests.bench.two_nodes: what it refuses before anything runs, and the page's parts that it leaves alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.two_nodes import __main__ as two_nodes
from tests.bench.two_nodes.document import document
from tests.bench.two_nodes.trainings import folder_of


@pytest.mark.parametrize("part", [folder_of(2), folder_of(4), two_nodes.SCRIPT])
def test_a_folder_of_an_earlier_run_is_refused(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / part).mkdir()
    tool = tmp_path / "tool"
    tool.touch()
    monkeypatch.setattr(sys, "argv", ["two_nodes", "--two-nodes", str(tool), "--keep", str(tmp_path)])
    assert two_nodes.main() == 2
    said = f"{tmp_path}: an earlier run left {part} there. Remove them, or name another folder.\n"
    assert capsys.readouterr().err == said


def test_a_kept_calibration_is_no_earlier_run(tmp_path: Path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "profile.toml").touch()
    assert two_nodes.used(tmp_path) == []


def test_a_part_that_did_not_run_stays_as_it_was():
    first = document([], [], [], "measured yesterday")
    assert "measured yesterday" in first
    assert document([], [], [], "", first) == first
    again = document([], [], [], "measured today", first)
    assert "measured today" in again and "yesterday" not in again


def test_the_page_has_the_parts_that_are_taken_over():
    page = (Path(__file__).parents[2] / "docs/appendix/two_nodes.md").read_text()
    assert document([], [], [], "", page) == page
