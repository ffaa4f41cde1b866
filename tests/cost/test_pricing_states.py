"""Bytes of states as the runtime holds them: what a plan says it takes is what its program takes."""

from __future__ import annotations

import pytest

from autoplan.options import Training
from tests.support.hand_made import llama
from tests.support.records import record_of

MIXED = Training(precision="bf16-mixed")


def elements(model) -> int:
    return sum(p.type.elements for p in model.parameters)


def test_mixed_precision_stores_sixteen_bytes_a_parameter():
    """float32 parameter and gradient, two float32 moments (Rajbhandari et al. 2020, section 3.1, less the copies)."""
    model = llama(dtype="bfloat16", batch=4, seq=4)
    memory = record_of(model, "1x1 h100-sxm", MIXED).chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.gradients, memory.optimizer) == tuple(n * elements(model) for n in (4, 4, 8))


def test_zero3_stores_its_share_of_that():
    model = llama(dtype="bfloat16", batch=4, seq=4)
    record = record_of(model, "1x4 h100-sxm", MIXED, dp=4, tp=1, pp=1, zero=3)
    memory = record.chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.optimizer) == tuple(n * elements(model) // 4 for n in (4, 8))
    assert memory.gradients <= elements(model)  # they grow while parameters are gathered


def test_a_pipelines_gradients_accumulate_whole_at_every_level():
    model = llama(dtype="bfloat16", batch=16)
    pinned = dict(dp=2, tp=1, pp=2, micro_batch=2, zero=3)
    held = record_of(model, "1x4 h100-sxm", MIXED, **pinned).chosen.predicted
    for memory in held.peak_bytes:
        assert memory.gradients == pytest.approx(2 * memory.parameters)  # the whole, of a half


def test_single_precision_stores_what_it_uses():
    model = llama(batch=4, seq=4)
    memory = record_of(model, "1x1 cpu").chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.gradients, memory.optimizer) == tuple(n * elements(model) for n in (4, 4, 8))
