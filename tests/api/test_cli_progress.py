"""What takes its time is told on a terminal's stderr, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from autoplan.cli.progress import phase


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "told"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_phase_is_shown_on_a_terminal_alone(
    stream: io.StringIO, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with phase("searching"):
        pass
    assert ("searching" in stream.getvalue()) == told and capsys.readouterr().out == ""


def test_an_error_inside_ends_the_line_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ValueError, match="wrong"), phase("searching"):
        raise ValueError("wrong")
