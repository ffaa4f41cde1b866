"""Settings share their operators whatever their data axis: of models of some size nothing is lost by it, nor is a bound
above a plan with operators of its own (docs/search_method.md, "Time against bytes")."""

from __future__ import annotations

import random

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.options import Parallelism, Training
from autoplan.search.driver import fastest
from autoplan.search.evaluate import Evaluator
from autoplan.search.intra_op.solve import Weights
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState, begin, candidates
from tests.support.hand_made import llama

CLUSTERS = ("1x4 h100-sxm", "1x4 a100-sxm-80gb", "1x8 h100-sxm", "2x4 a100-sxm-80gb", "2x8 h100-sxm")
LOOKED_AT = 16  # candidates with a tensor axis, those with the least bounds
LOST = 1e-3  # of a step, at most
STATES = (0.0, 0.01, 0.1, 1.0)  # times all the time, that all bytes of parameters cost


def random_work(seed: int, pins: Parallelism) -> tuple[SearchState, float]:
    """A search, and its wall."""
    rng = random.Random(seed)
    spec, hidden = ClusterSpec.parse(rng.choice(CLUSTERS)), rng.choice((768, 1024, 2048, 4096))
    model = llama(
        layers=rng.choice((4, 8, 12, 24)), batch=rng.choice((8, 16, 32, 64)), seq=rng.choice((512, 1024, 2048)),
        hidden=hidden, ffn=4 * hidden, heads=hidden // 64, kv=hidden // 64, vocab=32000,
    )  # fmt: skip
    training = Training(precision=rng.choice(("fp32", "bf16-mixed")), compile=rng.random() < 0.7)
    return begin(model, spec, training, pins), spec.usable_bytes


def own_s(work: SearchState, candidate: Candidate, wall: float, limit_s: float) -> float:
    """Seconds of the best plan with operators that are this candidate's alone."""
    anew = Evaluator.of(work.operators.solved_anew(candidate), work.training)
    quickest = anew.operators.fastest(candidate).solution
    prices = [times * quickest.time_s / max(quickest.state_bytes, 1.0) for times in STATES]
    points = [anew.operators.priced(candidate, Weights(price, 0.0)) for price in prices]
    found = [anew.with_point(candidate, point, wall, limit_s) for point in points]
    return min((one.step_s for one in found if one is not None), default=limit_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_lost_by_operators_that_are_shared(seed: int) -> None:
    pins = Parallelism(pipeline_schedule="1f1b")
    work, wall = random_work(seed, pins)
    settings = candidates(work.limits, pins)
    best = fastest(work, settings, wall)
    if best is None:
        assert all(work.evaluator.leanest(candidate).over_bytes(wall) for candidate in settings[:LOOKED_AT])
        return
    bound_s = best.step_s * (1 - work.gap(best))
    split = sorted((s for s in settings if s.tp > 1), key=work.evaluator.bounds.unlimited_s)[:LOOKED_AT]
    least_s = min(own_s(work, candidate, wall, best.step_s) for candidate in split)
    assert least_s >= best.step_s * (1 - LOST)
    assert least_s >= bound_s * (1 - 1e-9)


def test_a_setting_of_its_own_is_solved_anew() -> None:
    """Else the test above would compare a search with itself."""
    work, _ = random_work(0, Parallelism())
    candidate = next(s for s in candidates(work.limits, Parallelism()) if s.tp > 1)
    shared = work.operators.fastest(candidate)
    anew = work.operators.solved_anew(candidate)
    assert anew.entry(candidate) is not work.operators.entry(candidate)
    assert anew.fastest(candidate).solution.time_s == pytest.approx(shared.solution.time_s, rel=1e-9)
