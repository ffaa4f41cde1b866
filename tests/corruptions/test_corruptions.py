"""Damaged folders are refused, and memory stays as it was, or they do no harm; here 30 of each kind, or 60."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.corruptions.target import RIGHT, Target, cases
from tests.corruptions.targets import TARGETS
from tests.support.sampling import sampled


@pytest.mark.parametrize(
    ("target", "count"), sampled(itertools.product(TARGETS, (30, 60)), [(TARGETS[0], 30)]),
    ids=lambda x: str(getattr(x, "name", x)),
)  # fmt: skip
def test_no_damage_goes_unnoticed(target: Target, count: int, tmp_path: Path) -> None:
    seen = list(cases(target, count, seed=1, place=tmp_path))
    assert [case for case in seen if case.outcome not in RIGHT] == []
    assert {case.outcome for case in seen} == set(RIGHT)
