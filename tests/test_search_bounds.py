"""No bound of a setting is above a plan of it, gradients that are summed over the tensor axis included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.options import Parallelism, Training
from autoplan.search.work import begin, candidates
from tests.hand_made import llama


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("cluster", ["1x4 h100-sxm", "1x4 a100-sxm-80gb"])
def test_no_bound_is_above_a_plan(cluster: str, pp: int) -> None:
    spec, pins = ClusterSpec.parse(cluster), Parallelism(dp=1, pp=pp)
    work = begin(llama(batch=16, seq=256, hidden=256, ffn=512, vocab=512), spec, Training(precision="fp32"), pins)
    wall, plans = spec.usable_bytes, 0
    for setting in candidates(work.limits, pins):
        found = work.evaluate(setting, wall)
        if found is None or setting.tp == 1:
            continue
        plans += any(found.loads.summed_bytes((0, len(found.loads.chain))).values())
        for bound_s in (work.evaluator.least_s(setting, wall), work.evaluator.shared_s(setting, wall)):
            assert bound_s <= found.step_s * (1 + 1e-9), str(setting)
    assert plans, "no plan sums gradients over the tensor axis"


@pytest.mark.parametrize(("pp", "tp"), [(1, 4), (2, 2)])
def test_no_bound_is_above_a_plan_under_a_tight_wall(pp: int, tp: int) -> None:
    """Walls from the least that fits to ample: what fits is never quicker than what is proven, however tight that is;
    and cells prove more than prices of bytes alone."""
    spec = ClusterSpec.parse("1x4 h100-sxm")
    model = llama(layers=6, batch=16, seq=512, hidden=512, ffn=1536, vocab=512)
    pins = Parallelism(pp=pp, tp=tp)
    work = begin(model, spec, Training(precision="bf16-mixed"), pins)
    evaluator, plans, more = work.evaluator, 0, 0
    without = replace(evaluator)
    without.cells = lambda setting, known: None  # type: ignore[method-assign]
    for setting in candidates(work.limits, pins):
        leanest, ample = evaluator.leanest(setting), evaluator.evaluate(setting, spec.usable_bytes)
        assert ample is not None
        low, high = (max(m.total for m in found.memory) for found in (leanest, ample))
        for share in (0.0, 0.15, 0.4, 0.7):
            wall = float(low + share * (high - low)) + 1.0
            found = evaluator.evaluate(setting, wall)
            if found is None:
                continue
            plans += 1
            quick_s, bound_s = (evaluator.least_s(setting, wall, whole=whole) for whole in (False, True))
            hull_s = without.least_s(setting, wall)
            assert max(quick_s, bound_s) <= found.step_s * (1 + 1e-9), (str(setting), share)
            assert bound_s >= hull_s * (1 - 1e-3), (str(setting), share)
            more += bound_s > hull_s * (1 + 1e-3)
    assert plans >= 10 and more >= 2
