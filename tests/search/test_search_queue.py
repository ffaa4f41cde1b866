"""The order in which candidates are bounded and priced: whatever it is, the best that fits is found."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from autoplan.options import Parallelism
from autoplan.search import driver
from autoplan.search.budget import FULL, SearchBudget
from autoplan.search.driver import best_first, doubling
from autoplan.search.space.candidates import SpaceLimits, all_candidates

Choice = tuple[int, bool]  # its number, and whether it takes long to price


@dataclass
class Settings:
    """Some candidates: what each takes (infinite where it doesn't fit), three bounds, each tighter than the one before,
    and what a glance says (infinite where it finds nothing)."""

    true_s: dict[Choice, float]
    first_s: dict[Choice, float]
    second_s: dict[Choice, float]
    third_s: dict[Choice, float]
    glanced_s: dict[Choice, float]


def some(seed: int) -> Settings:
    chance = random.Random(seed)
    true_s, first_s, second_s, third_s, glanced_s = {}, {}, {}, {}, {}
    for number in range(chance.randint(1, 8)):
        one = (number, chance.random() < 0.5)
        true_s[one] = math.inf if chance.random() < 0.5 else chance.uniform(1, 5)
        most = min(true_s[one], 5.0)
        first_s[one] = most * chance.uniform(0.3, 1)
        second_s[one] = max(first_s[one], most * chance.uniform(0.5, 1))
        third_s[one] = max(second_s[one], most * chance.uniform(0.7, 1))
        if true_s[one] == math.inf and chance.random() < 0.5:
            third_s[one] = math.inf
        glanced_s[one] = true_s[one] * chance.choice([1.0, 1.1, math.inf])
    return Settings(true_s, first_s, second_s, third_s, glanced_s)


class Stub:
    """A search in progress, as far as the queue asks it."""

    def __init__(self, given: Settings) -> None:
        self.given, self.operators, self.budget = given, None, FULL
        self.bounds: dict[Choice, float] = {}
        self.asked: list[tuple[str, Choice]] = []
        self.points: set[tuple[Choice, Any]] = set()

    def feasible(self, possible: list[Choice]) -> list[Choice]:
        return list(possible)

    def least_bytes(self, candidate: Choice) -> float:
        return 0.0

    def unlimited_s(self, candidate: Choice) -> float:
        return self.given.second_s[candidate]

    def limited_s(self, candidate: Choice, memory_limit: float, limit_s: float) -> float:
        return self.given.third_s[candidate]

    def glance(self, candidate: Choice, memory_limit: float, limit_s: float, point: Any = None) -> Any:
        self.points.add((candidate, point))
        self.asked.append(("glance", candidate))
        taken_s = self.given.glanced_s[candidate]
        return None if taken_s == math.inf else SimpleNamespace(step_s=taken_s)

    def evaluate(self, candidate: Choice, memory_limit: float, limit_s: float = math.inf, point: Any = None) -> Any:
        self.points.add((candidate, point))
        self.asked.append(("evaluate", candidate))
        taken_s = self.given.true_s[candidate]
        return None if taken_s == math.inf or taken_s >= 1.2 * limit_s else SimpleNamespace(step_s=taken_s)


def test_the_best_candidate_is_found_and_every_one_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "is_dear", lambda candidate: candidate[1])
    for seed in range(500):
        given = some(seed)
        monkeypatch.setattr(driver, "lower_bound", lambda operators, one, given=given: given.first_s[one])
        work = Stub(given)
        found = best_first(work, list(given.true_s), 1.0, None, math.inf)  # type: ignore[arg-type]
        least_s = min(given.true_s.values())
        assert (found is None) == (least_s == math.inf)
        assert found is None or found.step_s * (1 - FULL.tolerance) <= least_s
        assert work.bounds.keys() == given.true_s.keys()
        assert all(bound_s <= given.true_s[one] for one, bound_s in work.bounds.items())


def test_with_given_operators_only_the_few_quickest_glances_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    dear = {(number, True): taken_s for number, taken_s in enumerate([1.05, 1.03, 1.06, 1.01, 1.04, 1.02])}
    bounds_s = {one: 0.1 + 0.01 * one[0] for one in dear}
    work = Stub(Settings(dear, bounds_s, bounds_s, bounds_s, dear))
    work.budget = replace(FULL, vain_glances=6)
    monkeypatch.setattr(driver, "is_dear", lambda candidate: True)
    monkeypatch.setattr(driver, "lower_bound", lambda operators, one: bounds_s[one])
    found = best_first(work, list(dear), 1.0, None, math.inf, points=dict.fromkeys(dear, "own"))  # type: ignore
    searched = [number for asked, (number, _) in work.asked if asked == "evaluate"]
    assert searched == [3, 5, 1][: FULL.searched_again] and found.step_s == 1.01
    assert work.points == {(one, "own") for one in dear}


def queued(
    monkeypatch: pytest.MonkeyPatch, glances_s: list[float], budget: SearchBudget, quick_s: float = math.inf
) -> list[tuple[str, int]]:
    """What is asked of which candidate: those that are dear take half of what a glance says, and the last is quick."""
    dear = {(number, True): taken_s for number, taken_s in enumerate(glances_s)}
    true_s = {**{one: taken_s / 2 for one, taken_s in dear.items()}, (len(dear), False): quick_s}
    bounds_s = {one: 0.1 + 0.01 * one[0] for one in true_s}
    work = Stub(Settings(true_s, bounds_s, bounds_s, bounds_s, dear))
    work.budget = budget
    monkeypatch.setattr(driver, "is_dear", lambda candidate: candidate[1])
    monkeypatch.setattr(driver, "lower_bound", lambda operators, one: bounds_s[one])
    best_first(work, list(true_s), 1.0, None, math.inf)  # type: ignore[arg-type]
    return [(asked, number) for asked, (number, _) in work.asked]


def test_a_slow_glance_puts_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are searched in the order of their bounds: a search far from its limit is given up."""
    asked = queued(monkeypatch, [4.0, 3.0, 2.0, 3.5], FULL)
    assert [number for what, number in asked if what == "evaluate"] == [4, 0, 1, 2, 3]


def test_glances_that_gain_nothing_wait_for_what_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = replace(FULL, vain_glances=2, glances=5)
    asked = queued(monkeypatch, [4.0, 5.0, 5.0, 3.0, 3.5, 3.5], budget, quick_s=6.0)
    first = [("glance", number) for number in range(3)]
    assert asked[:6] == [*first, ("evaluate", 6), ("glance", 3), ("glance", 4)]


def test_beside_a_plan_one_candidate_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = queued(monkeypatch, [4.0, 3.0, 2.0, 3.5], FULL.beside)
    assert [number for what, number in asked if what == "evaluate"] == [4, 2]


@pytest.mark.parametrize(("rows", "sizes"), [(64, {1, 2, 4, 8, 16}), (60, {1, 3, 15}), (36, {1, 3, 9})])
def test_sizes_of_microbatches_at_least_double(rows: int, sizes: set[int]) -> None:
    """Four ranks of rows: a power of two has every size, 15 rows 1, 3, 5 and 15, of which 5 is too near 3."""
    found = all_candidates(SpaceLimits(devices=4, node=4, rows=rows, segments=4), Parallelism(dp=4, tp=1, pp=1))
    assert {s.micro_batch for s in doubling(list(found))} == sizes
