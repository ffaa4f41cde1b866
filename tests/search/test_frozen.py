"""Parameters that aren't trained: they have no master, gradient, state, reduction or product, and only ZeRO-3 shards
them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from autoplan import Plan
from autoplan.cost import operators_of
from autoplan.cost.step import passes
from autoplan.export.folder import program_spec
from autoplan.options import Parallelism, Training
from autoplan.search.space.candidates import SpaceLimits, all_candidates
from autoplan.search.state import FEW_TRAINED, adapters_share
from tests.support.adapted import FROZEN, TRAINED, adapted, batch
from tests.support.planning import parallelize_alone

RANKS = 4


def planned(zero: int, **pins: object) -> Plan:
    pinned = Parallelism(dp=RANKS, zero=zero, micro_batch=1, recompute="none", **pins)  # type: ignore[arg-type]
    training = Training(precision="bf16-mixed", compile=False)
    return parallelize_alone(adapted(), f"1x{RANKS} h100-sxm", batch(), training=training, parallelism=pinned)


@pytest.fixture(scope="module")
def plans() -> Mapping[int, Plan]:
    return {zero: planned(zero) for zero in range(4)}


def test_a_device_holds_of_frozen_weights_what_it_computes_with(plans: Mapping[int, Plan]) -> None:
    """In bfloat16, and of ZeRO-3 a shard; of trained ones that, a float32 master and two moments."""
    note = "frozen parameters are kept in bfloat16, and saved as rounded to it: "
    assert all(any(each.startswith(note) for each in plan.record.model.notes) for plan in plans.values())
    memory = {zero: plan.predicted.peak_bytes[0] for zero, plan in plans.items()}
    assert memory[0].parameters == 2 * FROZEN + (2 + 4) * TRAINED
    assert memory[1].parameters == memory[2].parameters == 2 * FROZEN + (2 + 4 / RANKS) * TRAINED
    assert memory[3].parameters == (2 * FROZEN + 4 * TRAINED) / RANKS
    assert [memory[zero].optimizer for zero in range(4)] == [8 * TRAINED, *[8 * TRAINED / RANKS] * 3]
    assert all(one.gradients <= 4 * TRAINED for one in memory.values())


def test_gradients_of_what_is_trained_alone_are_reduced(plans: Mapping[int, Plan]) -> None:
    for zero, plan in plans.items():
        sent = Counter[str]()
        for each in plan.predicted.collectives:
            sent[each.kind] += each.bytes
        reduced = sent["all-reduce"] if zero == 0 else sent["reduce-scatter"]
        assert reduced == 4 * TRAINED
        if zero:
            gathered = {1: TRAINED, 2: TRAINED, 3: TRAINED + FROZEN}[zero]
            assert sent["all-gather"] == 2 * gathered


def test_a_product_with_a_frozen_weight_has_one_gradient_and_keeps_nothing(plans: Mapping[int, Plan]) -> None:
    model = plans[0].record.model
    layer = model.blocks[model.segments[1].block]
    products = [o for o in operators_of(layer, fuses=False).values() if o.rule.cost == "matmul"]
    frozen = [o for o in products if set(o.node.operands) & set(layer.frozen)]
    assert len(frozen) == 2 and {passes(o) for o in frozen} == {2}
    assert all(o.carries == (True, False) and o.keeps == () for o in frozen)
    assert {passes(o) for o in products if o not in frozen} == {3}


def test_layers_that_differ_in_what_is_trained_differ() -> None:
    """The first two are frozen, adapters and all."""
    model = adapted()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and not name.startswith(("layers.0.", "layers.1.")))
    plan = parallelize_alone(model, "1x2 cpu", batch(), parallelism=Parallelism(dp=2, zero=0))
    blocks = [segment.block for segment in plan.record.model.segments]
    assert blocks[1] != blocks[2]
    assert plan.predicted.peak_bytes[0].optimizer == 8 * TRAINED / 2


def test_ranks_store_frozen_weights_as_they_are_used(plans: Mapping[int, Plan]) -> None:
    for zero, plan in plans.items():
        spec = program_spec(plan.record)
        for stored in spec.lowered.parameters:
            assert bool(spec.shard_axes(stored)) == (zero == 3 or (stored.trainable and zero > 0))
            wide = stored.trainable and zero > 0
            assert spec.parameter_dtype(stored) == (torch.float32 if wide else torch.bfloat16)


def test_levels_that_shard_adapters_alone_are_tried_where_their_states_take_room() -> None:
    """ZeRO-3 shards frozen weights, too."""
    wide = replace(SpaceLimits(devices=16, node=8, rows=64, segments=40), adapters=0.03)
    levels: dict[int, set[int]] = {}
    for s in all_candidates(wide, Parallelism(dp=4, offload="none")):
        levels.setdefault(s.pp, set()).add(s.zero)
    assert levels[1] == {0, 3} == levels[4]  # four ranks of a replica share 3% of a device
    few = all_candidates(replace(wide, devices=4), Parallelism(dp=4, offload="none"))
    assert {s.zero for s in few} == {0, 1, 2, 3}
    assert {s.zero for s in all_candidates(wide, Parallelism(dp=4, zero=1))} == {1}


def test_adapters_are_few_beside_frozen_weights(plans: Mapping[int, Plan]) -> None:
    """Masters, gradients and two moments in float32, of a megabyte."""
    model, training = plans[0].record.model, Training(precision="bf16-mixed")
    assert 2 * TRAINED <= FEW_TRAINED * 2 * FROZEN
    assert adapters_share(model, training, 10**6) == 16 * TRAINED / 10**6
    every = replace(model, parameters=tuple(replace(p, trainable=True) for p in model.parameters))
    assert adapters_share(every, training, 10**6) == math.inf


def test_a_first_stage_may_hold_nothing_that_is_trained() -> None:
    """So that none of its gathers opens a pipeline."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    model[:2].requires_grad_(False)
    rows = (torch.zeros(4, 8), torch.zeros(4, 8))
    pinned = Parallelism(pp=2, dp=1, tp=1)
    plan = parallelize_alone(model, "1x2 cpu", rows, loss_fn=torch.nn.functional.mse_loss, parallelism=pinned)
    assert plan.record.chosen.parallelism.pp == 2
