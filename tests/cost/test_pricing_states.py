"""Bytes of states as the runtime holds them: what a plan says it takes is what its program takes."""

from __future__ import annotations

import pytest

from autoplan.options import Training
from tests.support.hand_made import llama
from tests.support.records import record_of

MIXED = Training(precision="bf16-mixed")


def elements(model) -> int:
    return sum(p.type.elements for p in model.parameters)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_mixed_precision_stores_eighteen_bytes_a_parameter(zero: int):
    """What is computed with and its float32 master, a float32 gradient, two float32 moments, as Megatron-LM has
    them; on one rank ZeRO has nothing to shard. All gradients stand in a second microbatch; of one alone a table's own
    takes more while it is added up than when it is there."""
    model = llama(dtype="bfloat16", batch=2, seq=1)
    memory = record_of(model, "1x1 h100-sxm", MIXED, zero=zero, micro_batch=1).chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.gradients, memory.optimizer) == tuple(n * elements(model) for n in (6, 4, 8))


def test_an_offloaded_optimizer_leaves_what_is_computed_with():
    model = llama(dtype="bfloat16", batch=4, seq=4)
    memory = record_of(model, "1x1 h100-sxm", MIXED, offload="optimizer", micro_batch=1).chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.gradients, memory.optimizer) == tuple(n * elements(model) for n in (2, 4, 0))
    assert memory.host == 16 * elements(model)


def test_zero1_gathers_what_is_computed_with_beside_its_share_of_the_masters():
    model = llama(dtype="bfloat16", batch=4, seq=4)
    record = record_of(model, "1x4 h100-sxm", MIXED, dp=4, tp=1, pp=1, zero=1)
    memory = record.chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.optimizer) == ((2 + 4 // 4) * elements(model), 8 * elements(model) // 4)


def test_zero3_stores_its_share_of_that():
    model = llama(dtype="bfloat16", batch=4, seq=4)
    record = record_of(model, "1x4 h100-sxm", MIXED, dp=4, tp=1, pp=1, zero=3)
    memory = record.chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.optimizer) == tuple(n * elements(model) // 4 for n in (4, 8))
    assert memory.gradients <= elements(model)  # they grow while parameters are gathered


def test_replicas_store_a_replicas_share_and_gather_inside_a_node():
    """Two nodes of four devices: each gathers and scatters inside, and an eighth less than all crosses, once a step."""
    model = llama(dtype="bfloat16", batch=16, seq=4)
    pinned = dict(dp=8, tp=1, pp=1, zero=3, micro_batch=1)
    apart, whole = (record_of(model, "2x4 h100-sxm", MIXED, dp_replicate=n, **pinned) for n in (2, 1))
    memory = apart.chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.optimizer) == tuple(n * elements(model) // 4 for n in (4, 8))
    collectives = apart.chosen.predicted.collectives
    gathered, last = (c for c in collectives if (c.kind, c.axis) == ("all-gather", "dp.inner4"))
    (summed,) = (c for c in collectives if (c.kind, c.axis) == ("all-reduce", "dp.outer2"))
    assert (gathered.count, last.count) == (4, 2)  # of two microbatches; the head stays for its backward
    assert summed.count == 1 and summed.bytes == 4 * elements(model) // 4
    all_gathered = next(c for c in whole.chosen.predicted.collectives if c.kind == "all-gather")
    assert all_gathered.axis == "dp" and gathered.seconds < all_gathered.seconds


def test_a_pipelines_gradients_accumulate_whole_at_every_level():
    model = llama(dtype="bfloat16", batch=16)
    pinned = dict(dp=2, tp=1, pp=2, micro_batch=2, zero=3)
    held = record_of(model, "1x4 h100-sxm", MIXED, **pinned).chosen.predicted
    for memory in held.peak_bytes:
        assert memory.gradients == pytest.approx(2 * memory.parameters)  # the whole, of a half


def test_single_precision_stores_what_it_uses():
    """At an update that makes temporaries, the busiest moment: all gradients stand then."""
    model, training = llama(batch=4, seq=4), Training(optimizer_options={"foreach": True})
    memory = record_of(model, "1x1 cpu", training).chosen.predicted.peak_bytes[0]
    assert (memory.parameters, memory.gradients, memory.optimizer) == tuple(n * elements(model) for n in (4, 4, 8))
