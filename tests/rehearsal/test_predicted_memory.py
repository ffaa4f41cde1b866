"""The account of a compiled plan's memory beside its rehearsal, for what was seen to be off on a device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from autoplan import Parallelism, Training
from tests.support.planning import parallelize_unproved
from tests.support.rehearsed_plans import llama, mixtral, planned

WITHIN = 0.02
PLANS = {
    "the loss in place": (llama, "bf16-mixed", "none"),
    "keys repeated in float32": (llama, "fp32", "none"),
    "a mixture's gradients in flight": (mixtral, "bf16-mixed", "full"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_compiled_plan_holds_what_was_predicted(name: str) -> None:
    model, precision, recompute = PLANS[name]
    plan = planned(model(), "1x1 h100-sxm", precision, recompute=recompute)
    (found,) = plan.rehearse().classes
    assert found.peak_bytes == pytest.approx(plan.predicted.peak_bytes[0].total, rel=WITHIN)


@pytest.mark.parametrize(
    ("zero", "tied", "recompute"), [(2, False, "none"), (2, True, "none"), (3, False, "full"), (3, True, "none")]
)
def test_what_zero_gathers_stands_beside_what_is_kept_then(zero: int, tied: bool, recompute: str) -> None:
    """Of a large head its logits stand as it begins to go back, its gradient as it ends."""
    fields = {"dp": 2, "zero": zero, "micro_batch": 6, "recompute": recompute}
    plan = planned(llama(2, 2048, tied), "1x2 cpu", **fields)
    for found in plan.rehearse().classes:
        assert found.peak_bytes == pytest.approx(plan.predicted.peak_bytes[0].total, rel=WITHIN)


def test_a_compiled_tables_gradient_is_summed_in_float32() -> None:
    """It stands beside that of half precision: on a stage with a large vocabulary that is the peak."""
    wide = {"pp": 2, "micro_batch": 4, "recompute": "none"}
    plan = planned(llama(2, 32768), "1x2 h100-sxm", "bf16-mixed", **wide)
    first, *_ = plan.rehearse().classes
    assert first.peak.during.startswith("backward")
    assert first.peak_bytes == pytest.approx(plan.predicted.peak_bytes[0].total, rel=WITHIN)


def test_a_gradient_in_half_precision_stands_beside_its_copy_in_float32() -> None:
    """Of a weight that is nearly the whole model, and summed with nobody: its gradient is copied as it comes."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1))
    rows, target = torch.zeros(24, 1024), torch.zeros(24, 1)
    pinned = Parallelism(dp=1, tp=1, pp=1, recompute="none", micro_batch=24)
    training = Training(optimizer="adamw", precision="bf16-mixed")
    plan = parallelize_unproved(
        model, "1x1 h100-sxm", (rows, target), loss_fn=mse_loss, training=training, parallelism=pinned
    )
    (found,) = plan.rehearse().classes
    assert found.peak.line.startswith("runtime/parallel/gradient_buckets.py")
    assert found.peak_bytes == pytest.approx(plan.predicted.peak_bytes[0].total, rel=WITHIN)


def test_of_many_stages_on_a_rank_what_one_sends_stands_until_the_next_ones_is_sent() -> None:
    """Buffers of gradients of all stages whose last backward was over stood until the step's end."""
    fields = {"dp": 2, "pp": 2, "zero": 1, "micro_batch": 4, "recompute": "full", "virtual_stages": 6}
    plan = planned(llama(12), "1x4 h100-sxm", "bf16-mixed", pipeline_schedule="interleaved", **fields)
    found = plan.rehearse()
    assert found.passed, found
    for each in found.classes:
        assert each.off > -WITHIN, found
