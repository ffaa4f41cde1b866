"""Several stages on each rank under a wall that no cuts can meet: that is found out, not run into."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.options import Parallelism, Training
from autoplan.search.driver import fastest
from autoplan.search.explain.does_not_fit import leanest
from autoplan.search.state import begin, candidates
from tests.support.hand_made import llama

MODEL = llama(batch=4, seq=64, hidden=128, ffn=512, vocab=1024, layers=2)
CLUSTER = ClusterSpec.parse("1x2 h100-sxm")


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_segment_on_each_stage_fits_or_does_not(recompute: str) -> None:
    """As many stages as segments: the cuts are given, and with them every byte; just above what they need they fit,
    just below nothing does."""
    pinned = Parallelism(
        dp=1, tp=1, pp=2, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2, recompute=recompute
    )
    assert len(MODEL.segments) == 4
    work = begin(MODEL, CLUSTER, Training(), pinned)
    needed = max(memory.total for memory in leanest(work, pinned).memory)
    for share, fits in ((1.01, True), (0.99, False), (0.5, False)):
        wall = round(needed * share)
        own = begin(MODEL, replace(CLUSTER, memory_bytes=wall), Training(), pinned)
        assert (fastest(own, candidates(own.limits, pinned), wall) is not None) == fits
