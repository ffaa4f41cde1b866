"""The journeys of a new user end as hoped, in less than ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.journeys.journey import LIMIT_S, outcomes
from tests.bench.journeys.journeys import JOURNEYS


@pytest.mark.slow
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_has_no_surprise(tmp_path: Path, name: str) -> None:
    found = list(outcomes(JOURNEYS[name], tmp_path))
    assert not found[-1].wrong, f"{found[-1].step.what}: {found[-1].wrong}\n{found[-1].output}"
    assert len(found) == len(JOURNEYS[name].steps) and sum(one.seconds for one in found) < LIMIT_S
