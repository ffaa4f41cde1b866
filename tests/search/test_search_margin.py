"""A margin of memory for what the account may be off by: plans leave it where they can."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError
from autoplan.ir.choice import Chosen
from autoplan.options import Parallelism, Training
from autoplan.search.driver import least_plan
from autoplan.search.entry import budget_of, search
from autoplan.search.state import begin, candidates
from tests.support.hand_made import llama

MODEL = llama(batch=8, seq=256, hidden=64, ffn=192, vocab=256, layers=6)
ROOMY = ClusterSpec.parse("1x1 h100-sxm")
KEEPS = Parallelism(dp=1, tp=1, pp=1, micro_batch=8, recompute="none")


def planned(cluster: ClusterSpec, pinned: Parallelism) -> Chosen:
    return search(MODEL, cluster, Training(), pinned, (), "fast")[0]


def peak(chosen: Chosen) -> int:
    return max(memory.total for memory in chosen.predicted.peak_bytes)


@pytest.fixture(scope="module")
def cluster() -> ClusterSpec:
    """One device that everything fits on, but not beside a margin of a tenth."""
    return replace(ROOMY, memory_bytes=round(1.1 * peak(planned(ROOMY, KEEPS))), memory_margin=0.1)


def test_what_is_chosen_leaves_the_margin(cluster: ClusterSpec) -> None:
    """What would keep everything if it filled its device recomputes some."""
    free = replace(KEEPS, recompute=None)
    assert peak(planned(replace(cluster, memory_margin=0), free)) > cluster.aimed_bytes
    assert peak(planned(cluster, free)) <= cluster.aimed_bytes


def test_what_fits_without_it_alone_is_planned(cluster: ClusterSpec) -> None:
    assert cluster.aimed_bytes < peak(planned(cluster, KEEPS)) <= cluster.usable_bytes
    with pytest.raises(DoesNotFitError):
        planned(replace(cluster, memory_bytes=cluster.aimed_bytes), KEEPS)


def test_more_memory_is_never_slower_where_the_margin_begins_to_be_left() -> None:
    """What fills a device that nothing leaves the margin on is no quicker than what leaves it on a larger one."""
    free = replace(KEEPS, recompute=None)
    work = begin(MODEL, ROOMY, Training(), free, (), budget_of("fast"))
    leanest = least_plan(work, candidates(work.limits, free))
    assert leanest is not None
    steps_s = []
    for share in (1.0, 1.9, 2.1, 3.0):  # of what it needs; with a margin of a half, left from 2 on
        limited = replace(ROOMY, memory_bytes=round(share * leanest.over_bytes(0.0)), memory_margin=0.5)
        steps_s.append(planned(limited, free).predicted.step_time_s)
    assert steps_s == sorted(steps_s, reverse=True) and steps_s[-1] < steps_s[0]
