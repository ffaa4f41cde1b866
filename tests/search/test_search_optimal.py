"""The operator problem against trying everything: random arrays and real operators, prices on bytes and walls."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.search.intra_op import milp as milp_module
from autoplan.search.intra_op import solve as solve_module
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.solve import Infeasible, Solver, Weights, solve
from autoplan.solver import branching as branching_module
from tests.support.everything import Everything, everything, trees_by_branches, trees_by_subsets
from tests.support.random_problems import random_problem, real_problem
from tests.support.sampling import sampled, slow

SAME = 1e-9
ARRAYS, REAL = 140, 65  # problems of each kind that have a solution


def prices_of(known: Everything) -> list[Weights]:
    """Nothing; then bytes that cost about as much as all the time; then far more."""
    scale = float(known.time_s.min()) / max(known.bytes_of(best=True), 1.0)
    return [Weights(), Weights(scale, scale), Weights(0.0, 3 * scale), Weights(30 * scale, 10 * scale)]


def check(problem: Problem) -> bool:
    """At every price of bytes and under every wall; gives whether there is anything to choose."""
    known, solver = everything(problem), Solver(problem)
    if not np.isfinite(known.time_s).any():
        with pytest.raises(Infeasible):
            solve(problem)
        return False
    for weights in prices_of(known):
        best, found = known.least(weights), solver.solve(weights)
        assert found.objective == pytest.approx(best, rel=SAME, abs=1e-18)
        assert found.bound <= best * (1 + SAME)
        picked = found.options
        assert known.time_s[picked] == pytest.approx(found.time_s, rel=SAME, abs=1e-18)
        assert known.state_bytes[picked] == pytest.approx(found.state_bytes, rel=SAME)
        assert known.kept_bytes[picked] == pytest.approx(found.kept_bytes, rel=SAME)
    check_walls(known, solver)
    return True


def check_walls(known: Everything, solver: Solver) -> None:
    """What prices on bytes give is the fastest of all that need as few bytes as it does; and under any wall, what is
    proven at a price is undercut by nothing."""
    low, high = known.bytes_of(best=False), known.bytes_of(best=True)
    span_s = max(known.fastest_under(low) - known.fastest_under(high), 0.0)
    fair = span_s / (high - low) if high > low else 0.0
    walls = [low + share * (high - low) for share in (0.0, 0.1, 0.5, 1.0)]
    for factor in (0.0, 0.3, 1.0, 3.0, 100.0):
        dual = factor * fair
        found = solver.solve(Weights(dual, dual))
        held = found.state_bytes + found.kept_bytes
        if dual > 0:
            assert known.fastest_under(held) == pytest.approx(found.time_s, rel=1e-8, abs=1e-18)
        for wall in walls:
            fastest_s = known.fastest_under(wall)
            assert found.bound - dual * wall <= fastest_s + SAME * (abs(found.bound) + dual * wall)
            assert found.time_s >= fastest_s * (1 - SAME) or held > wall


def compared(problem_of: Callable[[int], Problem], part: int, count: int) -> int:
    """How many problems with something to choose were compared, of twice as many at most."""
    found = 0
    for seed in range(part, part + 10 * count, 5):
        found += found < count and check(problem_of(seed))
    return found


@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_random_arrays_are_solved_as_by_trying_everything(part: int) -> None:
    assert compared(random_problem, part, ARRAYS // 5) == ARRAYS // 5


@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_real_operators_are_solved_as_by_trying_everything(part: int) -> None:
    assert compared(real_problem, part, REAL // 5) == REAL // 5


@pytest.mark.parametrize("problem_of", (random_problem, real_problem))
@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_consumers_served_together_are_served_as_by_trying_everything(
    part: int, problem_of: Callable[[int], Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where several axes are searched, and a tensor has hundreds of arcs."""
    monkeypatch.setattr(milp_module, "MANY_ARCS", 0)
    assert compared(problem_of, part, 12) == 12


@pytest.mark.parametrize("problem_of", (random_problem, real_problem))
def test_branching_ends_where_trying_everything_does(
    problem_of: Callable[[int], Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without HiGHS's own search for whole numbers; and where it is cut off, its bound holds."""
    monkeypatch.setattr(solve_module, "LARGE", -1)
    monkeypatch.setattr(branching_module, "NODES", 1000)
    assert compared(problem_of, 0, 12) == 12
    monkeypatch.setattr(branching_module, "NODES", 1)
    cut_off = [problem for problem in map(problem_of, range(200)) if leaves_fractions(problem)][:5]
    for problem in cut_off:
        best, found = everything(problem).least(Weights()), solve(problem)
        assert found.bound <= best * (1 + SAME) <= found.objective * (1 + 2 * SAME)
    assert cut_off or problem_of is real_problem


def leaves_fractions(problem: Problem) -> bool:
    solver = Solver(problem)
    try:
        return not solver.decided and solver.answer(solver.milp.cost(Weights()), relaxed=True)[0] is None
    except Infeasible:
        return False


def test_consumers_served_together_have_as_tight_a_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        problem = random_problem(seed)
        apart, _ = Solver(problem).relaxed(Weights())
        with monkeypatch.context() as patch:
            patch.setattr(milp_module, "MANY_ARCS", 0)
            together, _ = Solver(problem).relaxed(Weights())
        assert together >= apart * (1 - SAME)


@pytest.mark.parametrize("seeds", [12, slow(30)])
def test_bounds_along_the_price_of_kept_bytes_are_those_at_each_price(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Weights] = []
    relaxed = Solver.relaxed
    monkeypatch.setattr(Solver, "relaxed", lambda self, weights: (asked.append(weights), relaxed(self, weights))[1])
    prices, problems = np.append(0.0, np.geomspace(1e-13, 1e-9, 15)), 0
    for seed in range(seeds):
        problem, state = real_problem(seed), 1e-12 * (seed % 3)
        try:
            found = Solver(problem).bounds(state, prices)
        except Infeasible:
            continue
        problems += 1
        each = [relaxed(Solver(problem), Weights(state, float(price)))[0] for price in prices]
        assert found == pytest.approx(each, rel=1e-5) and (found <= np.array(each) * (1 + 1e-9)).all()
    assert problems > seeds // 3 and len(asked) < 0.7 * problems * len(prices)


def test_trees_of_every_subset_of_arcs_are_those_of_every_place_to_branch() -> None:
    """The two ways in which ``everything`` finds redistributions."""
    for seed in range(40):
        for tensor in random_problem(seed).tensors:
            for ends in (1, 2, 3):
                np.testing.assert_allclose(
                    trees_by_subsets(tensor, ends), trees_by_branches(tensor, ends), rtol=1e-12, atol=1e-18
                )


def test_the_random_problems_hold_what_they_should() -> None:
    """Branches, consumers that share a redistribution, parameters that several read, walls that bind."""
    problems = [random_problem(seed) for seed in range(40)] + [real_problem(seed) for seed in range(20)]
    assert sum(any(len(t.sinks) > 1 and len(t.arcs) for t in p.tensors) for p in problems) > 30
    assert sum(len({t.source for t in p.tensors}) < len(p.tensors) for p in problems) > 10
    known = [everything(p) for p in problems]
    bound = [k for k in known if math.isfinite(k.time_s.min()) and k.bytes_of(best=False) < k.bytes_of(best=True)]
    assert len(bound) > 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_more(part: int) -> None:
    for seed in range(1000 + part, 2000, 10):
        check(random_problem(seed))
        check(real_problem(seed))
