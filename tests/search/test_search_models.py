"""Models whose values skip stages, or whose rows are coupled: planned, and equal to one device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch

import autoplan
from autoplan.search.space.batch_axes import split_batch
from autoplan.trace.pipeline import trace
from autoplan.verify.local_ranks import RankPool
from tests.bench import correctness
from tests.bench.systems.reference import References, references
from tests.support import zoo
from tests.support.shared_plans import SharedPlans

CELLS = [
    ("unet", "pp=4"),
    *(("unet", system) for system in ("auto", "dp=2 tp=2", "ddp", "pp=2", "tp=2 pp=2")),
    *(("t5", system) for system in ("auto", "pp=4", "ddp", "dp=2 tp=2", "dp=2 pp=2", "tp=2 pp=2")),
    *(("resnet", system) for system in ("ddp", "auto", "pp=2", "dp=2 tp=2", "dp=2 pp=2")),
]


@pytest.fixture(scope="module")
def known() -> Iterator[References]:
    with references(zoo.small, correctness.TRAINING) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("model", "system"), CELLS)
def test_four_ranks_equal_one_device(
    pool: RankPool, known: References, shared_plans: SharedPlans, model: str, system: str
) -> None:
    row = correctness.check(pool, known, model, system, shared_plans)
    assert row.passed, f"{row}"


@pytest.mark.parametrize("model", ["unet", pytest.param("t5", marks=pytest.mark.slow)])
def test_all_that_crosses_a_cut_is_handed_on_and_priced(model: str) -> None:
    plan = correctness.plan_for(model, "pp=4")
    stages = plan.lowered.stages
    # small T5's decoder stands on one stage, so its two values cross a border of the chain that is no cut
    crossing = stages if model == "unet" else plan.record.model.blocks
    assert max(len(part.inputs) for part in crossing) > 1
    for number, (before, after) in enumerate(itertools.pairwise(stages)):
        assert [(v.type, v.layout) for v in after.inputs] == [(v.type, v.layout) for v in before.outputs]
        (sent,) = [c for c in plan.predicted.collectives if c.where == f"stage {number} -> {number + 1}"]
        assert sent.bytes == sum(v.type.bytes * math.prod(v.local_shape) // v.type.elements for v in after.inputs)


def test_batch_norm_keeps_the_batch_in_one_microbatch() -> None:
    assert correctness.plan_for("resnet", "dp=2 pp=2").record.chosen.microbatches == 1
    module, batch, loss_fn = zoo.small("resnet")
    with pytest.raises(autoplan.AutoplanError, match="batch_norm"):
        autoplan.parallelize(
            module, "1x4 cpu", batch, loss_fn=loss_fn, parallelism=autoplan.Parallelism(pp=2, micro_batch=1)
        )


def test_a_batch_as_long_as_its_sequence_is_split() -> None:
    """Rows and positions of one size are told apart by what reads them."""
    with torch.device("meta"):
        module = zoo.t5()
    batch = {name: ids[:, : zoo.BATCH] for name, ids in zoo.batch_of("t5").items()}
    assert split_batch(trace(module, batch, training=True), virtual=False).reason == ""
