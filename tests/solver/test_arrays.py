"""Programs in arrays: both engines find what trying all values does, and in fractions a bound of it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autoplan.solver import integer_program
from autoplan.solver.arrays import ArrayProgram


def random_program(seed: int) -> tuple[ArrayProgram, float]:
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


@pytest.fixture(params=[True, False], ids=["HiGHS", "CBC"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_program, "INSTALLED", request.param)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_that_of_trying_all(seed: int) -> None:
    made, best = random_program(seed)
    found = made.solve()
    assert found.values is not None and found.bound == pytest.approx(best, abs=1e-6) == found.values[0]
    assert made.solve(relaxed=True).bound <= best + 1e-6


@pytest.mark.usefixtures("engine")
def test_what_has_no_solution_has_an_infinite_bound() -> None:
    made, _ = random_program(0)
    made.add(-100.0, (np.arange(1, 4), np.ones(3)))
    found = made.solve()
    assert np.isinf(found.bound) and found.values is None


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("seed", range(5))
def test_a_program_that_has_grown_is_solved_as_one_that_was_made_so(seed: int) -> None:
    grown, _ = random_program(seed)
    made, _ = random_program(seed)
    grown.solve(relaxed=True)
    for step in range(3):
        for each in (grown, made):
            rng = random.Random(100 * seed + step)
            more = each.variables(0.5, 2.0)[None]
            row = np.array([rng.uniform(0, 3) for _ in range(3)])
            each.add(rng.uniform(-3, 0), (np.array([0]), 1.0), (np.arange(1, 4), -row), (more, 1.0))
            each.add(-1.0 - step, (np.arange(1, 4), np.ones(3)), (more, -1.0))
        alone = made.solve(relaxed=True).bound
        made.engine = None  # the next is begun anew
        assert grown.solve(relaxed=True).bound == pytest.approx(alone, abs=1e-7)
    assert grown.solve().bound == pytest.approx(made.solve().bound, abs=1e-6)
