"""A limit on time loses nothing that takes less: the search prices a candidate under the best step time so far."""

from __future__ import annotations

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.options import Parallelism, Training
from autoplan.search.evaluate import Evaluated, Evaluator
from autoplan.search.state import SearchState, begin, candidates
from tests.support.hand_made import llama
from tests.support.sampling import slow

CLUSTER = ClusterSpec.parse("8x8 h100-sxm")
MIXED = Training(precision="bf16-mixed")
MODEL = llama(
    batch=64, seq=4096, hidden=4096, ffn=14336, heads=32, kv=8, vocab=32000, layers=14, dtype="bfloat16"
)  # fmt: skip
PINS = Parallelism(tp=8, pp=4, micro_batch=1, zero=1, pipeline_schedule="interleaved", virtual_stages=4)
ABOVE = 1.02  # times what the plan takes


def evaluated(work: SearchState, memory_limit: float, limit_s: float = float("inf")) -> Evaluated:
    """The best plan of the one candidate, with nothing known before."""
    (candidate,) = candidates(work.limits, PINS)
    found = Evaluator.of(work.operators, MIXED).evaluate(candidate, memory_limit, limit_s)
    assert found is not None, f"nothing under {limit_s} s"
    return found


@pytest.mark.parametrize("share", [slow(0.9), slow(0.6), 0.5])
def test_a_plan_of_several_stages_a_rank_is_found_under_a_limit_that_it_keeps(share: float) -> None:
    """Where the fastest operators don't fit, also where an even chain of them would take far longer."""
    work = begin(MODEL, CLUSTER, MIXED, PINS)
    ample = evaluated(work, float("inf"))
    wall = share * ample.memory[ample.fullest].total
    alone = evaluated(work, wall)
    assert alone.step_s > ample.step_s
    assert evaluated(work, wall, ABOVE * alone.step_s).step_s <= alone.step_s * 1.001
