"""``autoplan checkpoint verify`` tells which checkpoints are whole, and names the file that isn't."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoplan import cli
from tests.support.checkpoints import STATE, make


def test_whole_checkpoints_are_told_with_what_they_hold(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for step in (1, 2):
        make(tmp_path / f"step-{step}", replace(STATE, step=step))
    assert cli.main(["checkpoint", "verify", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'step-1'}: whole: step 1, 1 tensors, ") and second.endswith("in 2 files")
    assert cli.main(["checkpoint", "verify", str(tmp_path / "step-2")]) == 0


def test_the_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for step in (1, 2, 3):
        make(tmp_path / f"step-{step}", replace(STATE, step=step))
    file = tmp_path / "step-2" / "rank-0.tensors"
    content = bytearray(file.read_bytes())
    content[5] ^= 4
    file.write_bytes(content)
    assert cli.main(["checkpoint", "verify", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2
    [line] = told.err.splitlines()
    said = "it is damaged: rank-0.tensors isn't as it was written (the checksum of parameters/w differs)"
    assert line.startswith(f"autoplan: error: {tmp_path / 'step-2'}: {said}")


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_what_is_no_checkpoint_is_told(tmp_path: Path, capsys: pytest.CaptureFixture, what: str) -> None:
    path = tmp_path / "c"
    if what == "a file":
        path.write_text("x")
    elif what == "an empty folder":
        path.mkdir()
    assert cli.main(["checkpoint", "verify", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "there is no finished checkpoint: it has no state.json" in line
