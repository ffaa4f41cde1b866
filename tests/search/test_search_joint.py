"""Operators under a memory wall, all that they hold in one row: what is found is the quickest of all that fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autoplan.cluster import ClusterSpec
from autoplan.compile import traced_model
from autoplan.models.named import resolve_model
from autoplan.options import Parallelism, Training
from autoplan.search.candidate_costs import CandidateCosts
from autoplan.search.driver import fastest
from autoplan.search.intra_op.milp import HeldBytes, Memory
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.solve import Solver
from autoplan.search.state import SearchState, begin, candidates
from autoplan.solver import integer_program
from autoplan.trace.initialise import given
from tests.support.everything import along, everything
from tests.support.random_problems import random_problem, real_problem
from tests.support.sampling import sampled

SAME = 1e-9
TIED = 1e-4  # seconds are a millionth of that objective
EXAMPLES = Path(__file__).parents[2] / "examples"
ARRAYS, REAL = 140, 65  # problems of each kind, as many as are compared without walls


def working_of(problem: Problem, seed: int) -> list[np.ndarray]:
    """Two in three groups need something for a moment, some options nothing."""
    random = np.random.default_rng(seed + 1)
    sizes = [random.integers(0, 6, len(g.options)) * 1e6 for g in problem.groups]
    return [size if random.random() < 0.7 else np.zeros(0) for size in sizes]


def tried(problem: Problem, held: HeldBytes, working: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, bytes) of every assignment that is possible."""
    known, rank = everything(problem), len(problem.groups)
    most = np.zeros([1] * rank)
    for index, sizes in enumerate(working):
        most = np.maximum(most, along(sizes, index, rank)) if len(sizes) else most
    total = held.state * known.state_bytes + held.kept * known.kept_bytes + most
    time_s, total = np.broadcast_arrays(known.time_s, total)
    possible = np.isfinite(time_s)
    return time_s[possible], total[possible]


def walls(time_s: np.ndarray, total: np.ndarray) -> list[float]:
    """From what just holds the leanest to what just doesn't hold the quickest."""
    quickest = total[time_s <= time_s.min() * (1 + 1e-12)].min()
    between = total[total < quickest]
    shares = (0.0, 0.05, 0.3, 1.0) if len(between) else ()
    return [float(np.quantile(between, share, method="lower")) for share in shares]


def check(problem: Problem, seed: int) -> int:
    """How many walls bind."""
    held, working = HeldBytes((4.0, 1.0, 16.0)[seed % 3], (1.0, 2.0)[seed % 2]), working_of(problem, seed)
    time_s, total = tried(problem, held, working)
    if not len(time_s):
        return 0
    joint = Solver(problem, Memory(held, working))
    least = float(total.min())
    assert joint.bytes(joint.leanest) == pytest.approx(least, rel=1e-6, abs=1.0)
    assert least == 0 or joint.quickest(least * (1 - 1e-5)) is None
    _, between = tried(problem, held, [np.zeros(0)] * len(working))
    lean = joint.leanest_between
    assert held.state * lean.state_bytes + held.kept * lean.kept_bytes == pytest.approx(float(between.min()), abs=1.0)
    alike_s = time_s[between <= between.min() + 1.0].min()
    assert lean.time_s == pytest.approx(float(alike_s), rel=TIED, abs=1e-18)
    for wall in walls(time_s, total):
        found = joint.quickest(wall * (1 + SAME))
        best_s = float(time_s[total <= wall * (1 + 1e-12)].min())
        assert found is not None
        assert joint.bytes(found) <= wall * (1 + 2 * SAME)
        assert found.time_s == pytest.approx(best_s, rel=SAME, abs=1e-18)
        assert found.bound <= best_s * (1 + SAME)
    unlimited = joint.quickest(math.inf)
    assert unlimited is not None
    assert unlimited.time_s == pytest.approx(float(time_s.min()), rel=SAME, abs=1e-18)
    return len(walls(time_s, total))


@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_random_arrays_under_walls_are_solved_as_by_trying_everything(part: int) -> None:
    assert sum(check(random_problem(seed), seed) for seed in range(part, ARRAYS, 5)) > ARRAYS // 5


@pytest.mark.parametrize("part", sampled(range(5), [0]))
def test_real_operators_under_walls_are_solved_as_by_trying_everything(part: int) -> None:
    assert sum(check(real_problem(seed), seed) for seed in range(part, REAL, 5)) > REAL // 5


@pytest.mark.parametrize("seed", range(6))
def test_so_they_are_by_cbc(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_program, "INSTALLED", False)
    check(random_problem(seed), seed)


@pytest.fixture
def unet() -> Callable[[], SearchState]:
    """Searches of one traced model, each from the beginning."""
    made = resolve_model(f"{EXAMPLES}/unet.py:make_model", (), batch=8, seq=None)
    training = Training(precision="bf16-mixed")
    model = traced_model(given(made.model).module, made.example_inputs, made.loss_fn, training)
    return lambda: begin(model, ClusterSpec.parse("1x8 a100-sxm-80gb"), training, Parallelism(tp=8, pp=1))


@pytest.mark.slow  # of what is priced there, the tests above try everything, in small
def test_a_chain_that_does_not_repeat_needs_less_and_is_quicker_under_a_wall(
    unet: Callable[[], SearchState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than by prices of bytes alone."""
    sought, priced = unet(), unet()
    settings = candidates(sought.limits, Parallelism(tp=8, pp=1))
    assert all(sought.evaluator.costs.rigid(s) for s in settings)
    needs = min(max(m.total for m in sought.evaluator.leanest(s).memory) for s in settings)
    fits = fastest(sought, settings, needs)
    monkeypatch.setattr(CandidateCosts, "rigid", lambda self, candidate: False)
    needed = min(max(m.total for m in priced.evaluator.leanest(s).memory) for s in settings)
    assert fits is not None
    assert needs < 0.9 * needed
    slower = fastest(priced, settings, needed)
    monkeypatch.undo()
    quicker = fastest(unet(), settings, needed)
    assert slower is not None and quicker is not None
    assert quicker.step_s < 0.97 * slower.step_s
