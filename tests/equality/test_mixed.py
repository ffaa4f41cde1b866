"""Mixed precision over ranks is no further from float32 than on one device, by more than a fifth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.ir.record import PlanRecord
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.verify import verify
from autoplan.verify.batch import example_batch
from autoplan.verify.compare import Run
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.single import on_one_device, random_state
from tests.support.hand_made import llama
from tests.support.records import record_of
from tests.support.sampling import sampled

DTYPES = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16", "fp32": "float32"}
PLANS = {
    "zero3": dict(dp=4, tp=1, pp=1, zero=3),
    "dp2 tp2 zero1": dict(dp=2, tp=2, pp=1, zero=1, micro_batch=2),
    "tp2 pp2": dict(dp=1, tp=2, pp=2, micro_batch=2),
}
MOST = 1.2


def planned(precision: str, plan: str) -> PlanRecord:
    model = llama(batch=8, seq=16, hidden=32, ffn=64, heads=4, kv=2, vocab=64, layers=2, dtype=DTYPES[precision])
    return record_of(model, "1x4 h100-sxm", Training(precision=precision, compile=False), **PLANS[plan])


def trained(pool: RankPool, record: PlanRecord) -> Run:
    """One step's run from the same weights on the same batch."""
    state = {name: value.float() for name, value in random_state(record.model, 0).items()}
    return in_pool(pool, record, example_batch(record.model, 0), state, train_on_rank, 2)


def distance(run: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Of all gradients, relative, in the 2-norm."""
    assert run.keys() == exact.keys()
    apart = math.hypot(*(float((run[n].double() - exact[n].double()).norm()) for n in exact))
    return apart / math.hypot(*(float(g.double().norm()) for g in exact.values()))


@pytest.mark.parametrize("precision", sampled(["bf16-mixed", "fp16-mixed"], ["bf16-mixed"]))
def test_no_further_from_float32_than_one_device(shared_pools: Callable[[int], RankPool], precision: str) -> None:
    pool, one = shared_pools(4), shared_pools(1)
    exact = trained(one, on_one_device(planned("fp32", "zero3")))
    alone = trained(one, on_one_device(planned(precision, "zero3")))
    single = distance(alone.gradients, exact.gradients)
    assert 0 < single < 0.05
    for plan in PLANS:
        run = trained(pool, planned(precision, plan))
        found = distance(run.gradients, exact.gradients)
        assert found <= MOST * single, f"{plan}: {found:.2e}, one device {single:.2e}"
        assert run.losses == pytest.approx(exact.losses, rel=1e-2)
        assert all(torch.isfinite(value).all() for value in run.parameters.values())


@pytest.mark.slow
def test_a_plan_in_float16_equals_one_device_in_float64() -> None:
    record = planned("fp16-mixed", "dp2 tp2 zero1")
    how = replace(record.training, optimizer="lamb", lr_schedule=LRSchedule("linear", steps=2), reduce_dtype="bf16")
    assert verify(replace(record, training=how), None, None, seed=0, raises=True).passed
    memory = record.chosen.predicted.peak_bytes[0]
    assert memory == planned("bf16-mixed", "dp2 tp2 zero1").chosen.predicted.peak_bytes[0]
