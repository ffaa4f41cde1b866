"""Programs in arrays: both engines prove the same optimum, in whole numbers and in fractions, of what can be enumerated."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autoplan.solver.arrays import ArrayProgram


def program(seed: int) -> tuple[ArrayProgram, float]:
    """The least T over x in 0..3 with T ≥ each of some random sums and a row of weights, and that T by trying all."""
    rng, made = random.Random(seed), ArrayProgram()
    step = made.variables(0.0, np.inf)[None]
    x = made.variables(np.zeros(3), 3.0, whole=True)
    costs = np.array([[rng.uniform(-2, 3) for _ in range(3)] for _ in range(4)])
    weights, least = np.array([rng.uniform(0.5, 2) for _ in range(3)]), rng.uniform(2, 6)
    made.add(np.zeros(4), (np.tile(step, (4, 1)), 1.0), (np.tile(x, (4, 1)), -costs))
    made.add(-least, (x, weights))
    points = (np.array(p) for p in itertools.product(range(4), repeat=3))
    return made, min(max(0.0, (costs @ p).max()) for p in points if weights @ p >= least)


@pytest.mark.parametrize("engine", ["by_highs", "by_cbc"])
@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_that_of_trying_all(engine: str, seed: int) -> None:
    made, best = program(seed)
    found = getattr(made, engine)(made.whole, 0.0)
    assert found.bound == pytest.approx(best, abs=1e-6) and found.values[0] == pytest.approx(best, abs=1e-6)
    assert getattr(made, engine)(made.whole & False, 0.0).bound <= best + 1e-6


@pytest.mark.parametrize("engine", ["by_highs", "by_cbc"])
def test_what_has_no_solution_has_an_infinite_bound(engine: str) -> None:
    made, _ = program(0)
    made.add(-100.0, (np.arange(1, 4), np.ones(3)))
    found = getattr(made, engine)(made.whole, 0.0)
    assert np.isinf(found.bound) and found.values is None
