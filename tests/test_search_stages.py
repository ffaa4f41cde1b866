"""Cuts of the chain: equal to trying every cut, and never above a wall."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.stages import choose_cuts, cost


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


@settings(max_examples=40, deadline=None)
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
