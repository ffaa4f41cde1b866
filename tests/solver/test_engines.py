"""Both solvers answer the same program alike, and what neither can answer is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.search.intra_op.milp import milp
from autoplan.search.intra_op.solve import Solver, Weights
from autoplan.solver import integer_program
from autoplan.solver.cbc import Cbc
from autoplan.solver.engines import Engine, Infeasible, solver_name
from autoplan.solver.highs import Highs
from autoplan.solver.integer_program import Program
from tests.support.random_problems import random_problem
from tests.support.sampling import sampled

PRICES = ((0.0, 0.0), (0.0, 3e-10), (2e-10, 1e-11))
SEEDS = sampled(range(12), range(3))


COST = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])


def odd_cycle() -> Program:
    """Three options on or off of which no two go together, one of them always: in fractions all three by half."""
    pairs = [(0, 1), (0, 2), (1, 2)]
    columns = np.array([place for a, b in pairs for place in (2 * a, 2 * b)])
    return Program(
        low=np.zeros(6),
        high=np.ones(6),
        whole=np.ones(6, dtype=bool),
        starts=np.array([0, 2, 4, 6, 8, 10, 12]),
        columns=np.concatenate([np.arange(6), columns]),
        factors=np.ones(12),
        least=np.array([1.0, 1.0, 1.0, -np.inf, -np.inf, -np.inf]),
        most=np.ones(6),
    )


def both(made: Program) -> tuple[Engine, Engine]:
    return Highs(made), Cbc(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_find_the_same_least_cost(seed: int) -> None:
    arrays = milp(random_problem(seed))
    made = arrays.program
    highs, cbc = both(made)
    for weights in PRICES:
        cost = arrays.cost(Weights(*weights)) * 1e6
        for integers in (False, True, False):
            one, other = (engine.run(cost, relaxed=not integers, gap=0.0) for engine in (highs, cbc))
            assert one.values is not None and other.values is not None
            least = float(cost @ one.values)
            assert float(cost @ other.values) == pytest.approx(least, rel=1e-6, abs=1e-6)
            for answer in (one, other):
                assert answer.bound <= least * (1 + 1e-6) + 1e-6
            assert one.bound == pytest.approx(least, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", (Highs, Cbc))
def test_fractions_bound_what_whole_numbers_reach(kind: type[Highs] | type[Cbc]) -> None:
    engine, cost = kind(odd_cycle()), COST
    relaxed = engine.run(cost, relaxed=True, gap=0.0)
    assert relaxed.bound == pytest.approx(4.5)
    whole = engine.run(cost, relaxed=False, gap=0.0)
    assert whole.values is not None and float(cost @ whole.values) == pytest.approx(5.0)
    assert whole.bound <= 5.0 + 1e-9
    assert engine.run(cost, relaxed=True, gap=0.0).bound == pytest.approx(4.5)


@pytest.mark.parametrize("kind", (Highs, Cbc))
def test_what_has_no_solution_is_told(kind: type[Highs] | type[Cbc]) -> None:
    made = odd_cycle()
    few = np.arange(6) < 3
    impossible = replace(made, least=np.where(few, made.least, 2.5), most=np.where(few, made.most, 2.5))
    with pytest.raises(Infeasible):
        kind(impossible).run(COST, relaxed=False, gap=0.0)


def test_a_gap_is_that_of_the_solver_where_fractions_leave_one() -> None:
    """HiGHS proves what the relaxation can't."""
    engine = Highs(odd_cycle())
    assert engine.run(COST, relaxed=False, gap=0.0).bound == pytest.approx(5.0)


def test_without_highs_cbc_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3)
    expected = Solver(problem).solve(Weights())
    monkeypatch.setattr(integer_program, "INSTALLED", False)
    assert solver_name() == "CBC"
    found = Solver(problem).solve(Weights())
    assert found.objective == pytest.approx(expected.objective, rel=1e-9)


@pytest.mark.parametrize("kind", (Highs, Cbc))
def test_what_isnt_allowed_is_0_until_it_is_allowed_again(kind: type[Highs] | type[Cbc]) -> None:
    engine = kind(odd_cycle())
    engine.allow(np.array([True, False, True, True, True, True]))
    found = engine.run(COST, relaxed=True, gap=0.0)
    assert found.values is not None and found.values[1] == 0.0 and found.bound == pytest.approx(5.0)
    engine.allow(np.ones(6, dtype=bool))
    assert engine.run(COST, relaxed=True, gap=0.0).bound == pytest.approx(4.5)
