"""No bound of a setting is above a plan of it, gradients that are summed over the tensor axis included."""

from __future__ import annotations

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
