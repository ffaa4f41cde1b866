"""The order in which settings are bounded and priced: whatever it is, the best that fits is found."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from autoplan.search import state
from autoplan.search.state import TOLERANCE, Work

Choice = tuple[int, bool]  # its number, and whether it takes long to price


@dataclass
class Settings:
    """Some settings: what each takes (infinite where it doesn't fit), and two bounds, the second the tighter."""

    true_s: dict[Choice, float]
    first_s: dict[Choice, float]
    second_s: dict[Choice, float]


def some(seed: int) -> Settings:
    chance = random.Random(seed)
    true_s, first_s, second_s = {}, {}, {}
    for number in range(chance.randint(1, 8)):
        one = (number, chance.random() < 0.5)
        true_s[one] = math.inf if chance.random() < 0.5 else chance.uniform(1, 5)
        most = min(true_s[one], 5.0)
        first_s[one] = most * chance.uniform(0.3, 1)
        second_s[one] = max(first_s[one], most * chance.uniform(0.5, 1))
        if true_s[one] == math.inf and chance.random() < 0.5:
            second_s[one] = math.inf
    return Settings(true_s, first_s, second_s)


class Stub(Work):
    def __init__(self, given: Settings) -> None:
        self.given, self.operators, self.training = given, SimpleNamespace(quick=False), None  # type: ignore[assignment]

    def dear(self, setting: Any) -> bool:
        return setting[1]

    def bounds(self, setting: Any) -> Any:
        return (lambda one, wall, limit_s: self.given.second_s[one],) * (1 + setting[1])

    def evaluate(self, setting: Any, wall: float, limit_s: float = math.inf) -> Any:
        taken_s = self.given.true_s[setting]
        return None if taken_s == math.inf or taken_s >= 1.2 * limit_s else SimpleNamespace(step_s=taken_s)


def test_the_best_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "least_bytes", lambda *asked: 0.0)
    for seed in range(500):
        given = some(seed)
        monkeypatch.setattr(state, "lower_bound", lambda operators, one, given=given: given.first_s[one])
        found = Stub(given).best(list(given.true_s), 1.0)  # type: ignore[arg-type]
        least_s = min(given.true_s.values())
        assert (found is None) == (least_s == math.inf)
        assert found is None or found.step_s * (1 - TOLERANCE) <= least_s
