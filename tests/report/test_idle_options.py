"""What was asked for and makes no difference is told or refused, whichever field it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import autoplan
from autoplan import ClusterSpec, Inference, LRSchedule, Parallelism, Training
from autoplan.errors import ParallelismError
from autoplan.ir.record import PlanRecord
from autoplan.report.idle_options import NEEDS, idle_options
from autoplan.report.notes import notes_of
from tests.support.planning import parallelize_alone

ALWAYS = (
    "dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual_stages", "tensor", "tensor_system", "local_steps",
    "outer_optimizer", "gossip", "servers", "staleness", "backups", "ahead", "compression", "compression_rank",
    "compression_rate", "compression_within", "optimizer", "precision", "weight_decay", "betas", "eps", "momentum",
    "clip_grad_norm", "compile", "optimizer_options", "lr_schedule", "groups", "outer_learning_rate", "outer_momentum",
    "compression_start", "all_reduce", "delay_compensation", "tables", "table_cache", "table_misses",
)  # fmt: skip
"""Fields that a plan follows whenever it isn't refused, or that the report tells by themselves."""

BATCH = (torch.empty(8, 16), torch.empty(8, dtype=torch.int64))


def record_of(cluster: str, parallelism: Parallelism, **options: object) -> PlanRecord:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))
    loss = nn.functional.cross_entropy
    return parallelize_alone(model, cluster, BATCH, loss_fn=loss, parallelism=parallelism, **options).record


@pytest.fixture(scope="module")
def one() -> PlanRecord:
    """One device, one microbatch, nothing that repeats or drops out."""
    return record_of("1x1 cpu", Parallelism())


@pytest.fixture(scope="module")
def wide() -> PlanRecord:
    """Where each of the options has an effect, or the plan says that it has taken them."""
    record = record_of("1x4 cpu", Parallelism(dp=2, pp=2, tp=1, zero=1, micro_batch=1))
    stages = tuple(replace(stage, recompute=1) for stage in record.chosen.stages)
    taken = replace(record.chosen.parallelism, sequence_parallel=True, offload=None)
    return replace(record, chosen=replace(record.chosen, stages=stages, parallelism=taken))


def test_of_every_field_it_is_said_when_it_matters() -> None:
    names = {field.name for kind in (Parallelism, Training) for field in fields(kind)}
    assert names == {*NEEDS, *ALWAYS} and not set(NEEDS) & set(ALWAYS)


PINNED = [
    ("zero", 2, True), ("recompute", "full", True), ("offload", "activations", True),
    ("pipeline_schedule", "1f1b", True), ("sequence_parallel", True, True), ("cp_attention", "ring", False),
    ("etp", 2, False), ("tp_overlap", 4, False), ("ep_overlap", "shared", False),
]  # fmt: skip
"""(field, value, whether the plan that is wide makes use of it)"""


@pytest.mark.parametrize(("name", "value", "used"), PINNED)
def test_a_pin_without_effect_is_told_where_it_has_none_alone(
    one: PlanRecord, wide: PlanRecord, name: str, value: object, used: bool
) -> None:
    asked = replace(one.asked, parallelism=Parallelism(**{name: value}))
    (told,) = idle_options(replace(one, asked=asked))
    assert told.startswith(f"No effect: {name}={value!r}, for ")
    assert bool(idle_options(replace(wide, asked=asked))) is not used
    assert notes_of(replace(one, asked=asked))[0] == told


TRAINED = [
    ("seed", 3), ("reduce_dtype", "bf16"), ("statistics", "microbatch"), ("randomness", "per-rank"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), TRAINED)
def test_so_is_a_training_s(one: PlanRecord, name: str, value: object) -> None:
    (told,) = idle_options(replace(one, training=Training(**{name: value})))  # type: ignore[arg-type]
    assert told.startswith(f"No effect: {name}={value!r}, for ")


def test_what_a_plan_makes_use_of_is_not_told(one: PlanRecord, wide: PlanRecord) -> None:
    assert idle_options(one) == idle_options(wide) == []
    assert not idle_options(replace(wide, training=Training(reduce_dtype="bf16", statistics="microbatch")))


def with_pins(record: PlanRecord, **pins: object) -> PlanRecord:
    chosen = replace(record.chosen, parallelism=replace(record.chosen.parallelism, **pins))
    return replace(record, chosen=chosen, asked=replace(record.asked, parallelism=Parallelism(**pins)))


@pytest.mark.parametrize("offload", ["optimizer", "parameters", "nvme"])
def test_what_a_host_updates_is_in_use_where_its_memory_is_the_devices_own(one: PlanRecord, offload: str) -> None:
    assert not idle_options(with_pins(one, offload=offload))


def test_pushed_gradients_are_summed_in_the_dtype_that_was_asked_for(wide: PlanRecord) -> None:
    assert not idle_options(replace(with_pins(wide, servers=1), training=Training(reduce_dtype="bf16")))
    told = idle_options(replace(with_pins(wide, local_steps=2), training=Training(reduce_dtype="bf16")))
    assert told == ["No effect: reduce_dtype='bf16', for no gradients are summed over dp."]


def test_a_rate_that_a_schedule_overrides_is_told(one: PlanRecord) -> None:
    schedule = LRSchedule("OneCycleLR", options={"max_lr": 0.1, "total_steps": 10})
    (told,) = idle_options(replace(one, training=Training(learning_rate=0.01, lr_schedule=schedule)))
    assert told.startswith("No effect: learning_rate=0.01, for lr_schedule='OneCycleLR' sets")


LINKS = [
    (ClusterSpec(1, 2, "h100-sxm", network="ib-ndr"), "network='ib-ndr'"),
    (ClusterSpec(2, 1, "h100-sxm", node="nvswitch-4"), "node='nvswitch-4'"),
    (ClusterSpec(1, 2, "h100-sxm", bandwidth=2.0), "bandwidth=nic:2"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("cluster", "what"), LINKS, ids=[what for _, what in LINKS])
def test_a_link_that_joins_nothing_is_told(one: PlanRecord, cluster: ClusterSpec, what: str) -> None:
    (told,) = idle_options(replace(one, cluster=cluster))
    assert told.startswith(f"No effect: {what}, for ")
    assert not idle_options(replace(one, cluster=replace(cluster, nodes=2, devices_per_node=2)))


def test_memory_that_no_device_has_is_told(one: PlanRecord) -> None:
    (told,) = idle_options(replace(one, cluster=ClusterSpec(1, 1, "h100-sxm", memory_bytes=10**15)))
    assert "memory_bytes=909 TiB is more than the 79.1 GiB of a" in told


def constraints() -> Iterator[autoplan.rules.constraints.Constraint]:
    yield autoplan.pin("0", "S(1)")
    yield autoplan.forbid("0", "S(1)", axis="tp2")


def test_a_constraint_over_an_axis_that_is_not_there_is_told(one: PlanRecord) -> None:
    told = idle_options(replace(one, asked=replace(one.asked, constraints=tuple(constraints()))))
    assert len(told) == 2 and "which forbids S(1) over tp2" in told[1]
    whole = replace(one.asked, constraints=(autoplan.replicated("0"),))
    assert not idle_options(replace(one, asked=whole))


@pytest.mark.parametrize(
    "pins", [Parallelism(zero=2), Parallelism(recompute="full"), Parallelism(pipeline_schedule="zero-bubble"), "zero1"]
)
def test_what_serves_training_alone_is_refused_without(pins: Parallelism | str) -> None:
    with pytest.raises(ParallelismError, match=r"with Inference\(\): .* a forward alone has none. "):
        record_of("1x2 cpu", pins, training=Inference())  # type: ignore[arg-type]


def test_a_loss_and_a_target_that_a_forward_alone_does_not_need_are_told() -> None:
    notes = record_of("1x1 cpu", Parallelism(), training=Inference()).model.notes
    assert "loss_fn isn't computed: Inference() plans the forward alone" in notes


def test_an_input_that_nothing_reads_is_told() -> None:
    def by_itself(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    plan = parallelize_alone(nn.Linear(16, 4), "1x1 cpu", BATCH, loss_fn=by_itself)
    assert "batch input target is never read" in plan.record.model.notes
