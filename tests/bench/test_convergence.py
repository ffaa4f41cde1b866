"""The table of asynchronous systems' losses: what was trained, and what counts as diverged."""

from __future__ import annotations

import math

import pytest
import torch

from autoplan.verify.local_ranks import RankPool
from tests.bench import convergence as bench


@pytest.mark.slow
def test_a_few_steps_learn_something_and_are_told(pool: RankPool) -> None:
    """Of the same start both systems take the same first step: their losses agree until the replicas part."""
    rows = [bench.trained(system, 12, pool, layers=1, last=6) for system in ("ddp", "local-sgd")]
    assert all(row.trained < math.log(bench.BYTES) for row in rows)
    page = bench.document(rows, 12, bench.of_frequencies(bench.text()), "2026-01-02")
    assert "| `ddp` | dp=4" in page and "| `local-sgd` | dp=4" in page and "+0.000" in page


def test_what_knows_no_more_than_frequencies_has_diverged() -> None:
    bound = bench.of_frequencies(bench.text())
    assert 2 < bound < math.log(bench.BYTES)
    told = {loss: bench.diverged(bench.Trained("x", "", 0.0, loss), bound) for loss in (1.0, bound, math.nan, math.inf)}
    assert list(told.values()) == [False, True, True, True]


def test_no_held_out_byte_is_trained_on() -> None:
    trained_on, held_out = bench.split(torch.arange(1000))
    assert len(held_out) == 100 and not set(trained_on.tolist()) & set(held_out.tolist())
