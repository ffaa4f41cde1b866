"""Damaged folders are refused, and memory stays as it was, or they do no harm; here 60 of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corruptions.target import RIGHT, Target, cases
from tests.corruptions.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_damage_goes_unnoticed(target: Target, tmp_path: Path) -> None:
    seen = list(cases(target, 60, seed=1, place=tmp_path))
    assert [case for case in seen if case.outcome not in RIGHT] == []
    assert {case.outcome for case in seen} == set(RIGHT)
