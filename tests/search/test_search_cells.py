"""Cells of what a block's operators can be: nothing is outside of them, nothing in one is quicker than it says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoplan.search.intra_op.solve import Infeasible, Solver
from autoplan.search.proof.boxes import GAP, SMALLER, Cell, Cells, least_of_cells
from autoplan.solver import engines
from tests.search.test_search_optimal import random_problem
from tests.support.everything import Everything, everything

SEEDS = range(20)
SAME = 1e-9


def known_of(seed: int) -> Everything | None:
    """All assignments of a random problem, as flat arrays; None where none is possible."""
    known = everything(random_problem(seed))
    shape = np.broadcast_shapes(known.time_s.shape, known.state_bytes.shape, known.kept_bytes.shape)
    flat = [np.broadcast_to(a, shape).ravel() for a in (known.time_s, known.state_bytes, known.kept_bytes)]
    possible = np.isfinite(flat[0])
    return Everything(*(a[possible] for a in flat)) if possible.any() else None


def cells_of(seed: int, known: Everything, count: int = 1) -> Cells:
    return Cells(random_problem(seed), count, float(known.state_bytes.min()) / count)


def leaves(cells: Cells) -> list[Cell]:
    """All cells, divided for as long as they can be."""
    found, left = [], list(cells.bands())
    while left:
        first, *others = cells.divided(left.pop()) or (None,)
        found += [] if first is None else [first]
        left += others
    return found


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_quickest_under_both_limits_is_that_of_trying_everything(
    seed: int, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "INSTALLED", installed)
    known, problem = known_of(seed), random_problem(seed)
    if known is None:
        return
    solver, quantiles = Solver(problem), (0.0, 0.3, 0.7, 1.0)
    limits = [np.quantile(part, quantiles, method="lower") for part in (known.state_bytes, known.kept_bytes)]
    for least, state, kept in itertools.product([0.0, *limits[0][:2]], *limits):
        inside = (known.state_bytes <= state * (1 + SAME)) & (known.kept_bytes <= kept * (1 + SAME))
        inside &= known.state_bytes >= least * (1 - SAME)
        found = solver.within((least * (1 - SAME), state * (1 + SAME)), kept * (1 + SAME), 1e-9)
        assert (found is None) == (not inside.any())
        if found is not None:
            best_s = float(known.time_s[inside].min())
            assert found.time_s == pytest.approx(best_s, rel=1e-6, abs=1e-15)
            assert found.bound <= best_s * (1 + 1e-6) + 1e-15
            assert found.state_bytes <= state * (1 + 1e-6) and found.kept_bytes <= kept * (1 + 1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_assignment_is_in_a_cell_that_is_no_slower(seed: int) -> None:
    known = known_of(seed)
    if known is None:
        return
    found = leaves(cells_of(seed, known))
    for time_s, state, kept in zip(known.time_s, known.state_bytes, known.kept_bytes, strict=True):
        in_states = [c for c in found if c.state <= state < c.state_below * (1 + 2 * SMALLER)]
        mine = [c for c in in_states if c.kept <= kept < c.kept_below * (1 + 2 * SMALLER)]
        assert mine and min(c.least_s for c in mine) <= time_s * (1 + SAME) + 1e-15


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_at_any_cost_of_bytes_the_least_of_cells_is_that_of_all(seed: int, count: int) -> None:
    """A cost that no price makes: steps, as whole segments that are recomputed are."""
    known = known_of(seed)
    if known is None:
        return
    fast_s = float(known.time_s.min()) / count
    state, kept = (np.quantile(part, 0.4) / count * 1.001 + 1.0 for part in (known.state_bytes, known.kept_bytes))

    def cost_s(least_s: np.ndarray | float, held: np.ndarray | float, keeps: np.ndarray | float) -> np.ndarray:
        steps = np.floor(np.asarray(held) / state) + np.floor(1.7 * np.asarray(keeps) / kept)
        return np.asarray(least_s + 0.2 * fast_s * steps)

    best_s = float(cost_s(known.time_s / count, known.state_bytes / count, known.kept_bytes / count).min())

    def bound_s(cell: Cell) -> float:
        """A cell begins a trifle below its answer: no step may lie between."""
        return float(cost_s(cell.least_s, cell.state * (1 + 2 * SMALLER), cell.kept * (1 + 2 * SMALLER)))

    found = least_of_cells(cells_of(seed, known, count), bound_s, np.inf, most=10_000)
    assert best_s * (1 - 2 * GAP) - 1e-15 <= found <= best_s * (1 + 1e-6) + 1e-15
    first = least_of_cells(cells_of(seed, known, count), lambda _: 0.0, np.inf, most=10_000, further=(bound_s,))
    assert first == pytest.approx(found, rel=2 * GAP)
    few = least_of_cells(cells_of(seed, known, count), bound_s, np.inf, most=2)
    assert few <= found * (1 + 1e-6) + 1e-15
    assert least_of_cells(cells_of(seed, known, count), bound_s, best_s * 0.5) >= best_s * 0.5 * (1 - SAME)


def test_where_nothing_fits_nothing_is_left() -> None:
    known = next(k for k in map(known_of, SEEDS) if k is not None)
    seed = next(s for s in SEEDS if known_of(s) is not None)
    assert np.isinf(least_of_cells(cells_of(seed, known), lambda cell: np.inf, 1.0))


def test_a_solver_that_finds_nothing_in_time_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        raise Infeasible("the solver found nothing in 30 s")

    seed, known = next((s, k) for s in SEEDS if (k := known_of(s)) is not None)
    monkeypatch.setattr(Solver, "within", late)
    cells = cells_of(seed, known)
    assert leaves(cells) == list(cells.bands())[::-1]
    assert least_of_cells(cells, lambda cell: cell.least_s, 1.0, 0.25) == 0.25
