"""An error is told once on a machine, whoever meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoplan.errors import InputsError, LaunchError
from autoplan.runtime.elastic import stderr_messages


def as_rank(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, local: int | None = None) -> None:
    (folder / str(rank)).mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(rank if local is None else local))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / str(rank) / "error.json"))
    monkeypatch.setattr(stderr_messages, "HEAD_START_S", 0.05)


def test_each_text_is_told_by_one_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1, 2):
        as_rank(monkeypatch, tmp_path, rank)
        stderr_messages.tell_once(InputsError("a", "b", "c"))
        cause = "of one rank alone" if rank == 2 else "b"
        stderr_messages.tell_once(InputsError("a", cause, "c"))
    said = capsys.readouterr().err.splitlines()
    assert said == ["autoplan: error: a: b. c.", "[rank 2] autoplan: error: a: of one rank alone. c."]
    assert json.loads((tmp_path / "0" / "error.json").read_text())["message"]["message"] == said[0]
    assert not (tmp_path / "1" / "error.json").exists()


def test_a_rank_that_is_alone_with_its_error_tells_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_rank(monkeypatch, tmp_path, 3)
    stderr_messages.tell_once(InputsError("a", "b", "c"))
    assert capsys.readouterr().err == "[rank 3] autoplan: error: a: b. c.\n"


def test_how_a_script_was_started_the_first_rank_of_all_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_rank(monkeypatch, tmp_path, 4, local=0)  # of a second machine
    stderr_messages.tell_once(LaunchError("a", "b", "c"))
    assert capsys.readouterr().err == ""


def test_an_attempt_anew_tells_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt in ("attempt_0", "attempt_1"):
        as_rank(monkeypatch, tmp_path / attempt, 0)
        stderr_messages.tell_once(InputsError("a", "b", "c"))
    assert len(capsys.readouterr().err.splitlines()) == 2
