"""What a rehearsal says of a plan that doesn't fit, and of a folder that isn't what was exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.errors import PlanFileError
from autoplan.rehearsal.rehearse import rehearse
from tests.support.rehearsed_plans import llama, planned


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return planned(llama(1), "1x2 cpu", dp=2, zero=0).export(tmp_path / "out")


def test_what_does_not_fit_is_told_first(exported: Path) -> None:
    found = rehearse(exported)
    (one,) = found.classes
    assert found.passed and "doesn't fit" not in str(found)
    less = replace(found, limit_bytes=one.peak_bytes - 1)
    assert not less.passed
    said = str(less).splitlines()[2]
    assert said.startswith("It doesn't fit: ") and said.endswith("; 2 of 2 ranks take more than that.")
    assert "(all ranks), where a device has" in said


def test_a_folder_that_is_not_whole_is_told_before_a_rank_runs(exported: Path) -> None:
    program = (exported / "program.py").read_text()
    (exported / "program.py").unlink()
    with pytest.raises(PlanFileError, match=r"there is no program\.py"):
        rehearse(exported)
    (exported / "program.py").write_text(program)
    kept = next(path for path in sorted(exported.glob("pretrained/*")))
    kept.unlink()
    with pytest.raises(PlanFileError, match="is missing, which was exported with it"):
        rehearse(exported)
