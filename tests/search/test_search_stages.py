"""Cuts of the chain: equal to trying every cut, and never above a wall."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.search.inter_op.partition import choose_cuts, cost
from tests.support.sampling import examples, sampled
from tests.support.stage_ilp import least_objective


def by_trial(seconds: list[np.ndarray], microbatches: int) -> float:
    """The least cost over all cuts."""
    size = len(seconds[0]) - 1
    best = np.inf
    for inner in itertools.combinations(range(1, size), len(seconds) - 1):
        ends = (0, *inner, size)
        stages = list(itertools.pairwise(ends))
        if all(np.isfinite(seconds[k][at]) for k, at in enumerate(stages)):
            best = min(best, cost(seconds, stages, microbatches))
    return best


@examples(40)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(4, 8), st.integers(1, 6))
def test_no_cut_is_faster(seed: int, stages: int, segments: int, microbatches: int) -> None:
    """Stages differ, as they do where the wall asks one for recomputation and another not."""
    random = np.random.default_rng(seed)
    seconds = []
    for _ in range(stages):
        part = np.full((segments + 1, segments + 1), np.inf)
        times = random.uniform(1, 3, segments)
        for i in range(segments):
            for j in range(i + 1, segments + 1):
                extra = random.choice([0.0, 0.0, 1.5])
                part[i, j] = np.inf if random.random() < 0.15 else times[i:j].sum() + extra
        seconds.append(part)
    best = by_trial(seconds, microbatches)
    found = choose_cuts(seconds, microbatches)
    assert (found is None) == (best == np.inf)
    if found is not None:
        assert found.objective_s == pytest.approx(best)
        assert found.bound_s <= found.objective_s * (1 + 1e-6)
        assert found.objective_s == pytest.approx(cost(seconds, found.stages, microbatches))


@pytest.mark.parametrize("seed", sampled(range(12), range(1, 6)))
def test_the_ilp_finds_nothing_better(seed: int) -> None:
    """Chains too long to try every cut: blocks alike, ends heavier, some intervals above the wall."""
    random = np.random.default_rng(seed)
    segments, stages, microbatches = (int(random.integers(*ends)) for ends in ((10, 22), (2, 6), (1, 9)))
    times = np.where(np.arange(segments) % (segments - 1) == 0, random.uniform(1, 3), 1.0)
    total = np.concatenate([[0.0], np.cumsum(times)])
    seconds = []
    for stage in range(stages):
        part = np.where(np.triu(np.ones((segments + 1,) * 2), 1) > 0, total[None, :] - total[:, None], np.inf)
        room = random.uniform(1.0, 2.0) * segments / stages + stage
        part = part + np.where(np.isfinite(part), np.maximum(np.ceil(part - room), 0) * 0.3, 0.0)
        seconds.append(np.where(part > 2.2 * room, np.inf, part))
    found = choose_cuts(seconds, microbatches)
    best = least_objective(seconds, microbatches)
    assert (np.inf if found is None else found.objective_s) == pytest.approx(best, rel=1e-9)
