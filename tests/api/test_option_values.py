"""Options take the values that they are said to take, and no others."""

from __future__ import annotations

import pytest

from autoplan import option_values as values
from autoplan.errors import ParallelismError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Parallelism, Training

PINNED = {
    "recompute": values.RECOMPUTE, "offload": (*values.OFFLOADS, values.ON_DISK, "none"),
    "cp_attention": values.CP_ATTENTION, "tensor_system": values.TENSOR_SYSTEMS, "gossip": values.GOSSIP,
    "outer_optimizer": values.OUTER_OPTIMIZERS, "compression": values.COMPRESSIONS,
    "pipeline_schedule": values.SCHEDULES,
}  # fmt: skip
TRAINED = {
    "precision": values.PRECISIONS, "reduce_dtype": values.REDUCE_DTYPES, "statistics": values.STATISTICS,
    "randomness": values.RANDOMNESS, "expert_dropping": values.EXPERT_DROPPING,
}  # fmt: skip


@pytest.mark.parametrize("name", PINNED)
def test_a_pin_takes_its_values(name: str) -> None:
    for value in PINNED[name]:
        assert getattr(Parallelism(**{name: value}), name) == value
    with pytest.raises(ParallelismError, match=PINNED[name][0]):
        Parallelism(**{name: "otherwise"})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_takes_its_values(name: str) -> None:
    for value in TRAINED[name]:
        assert getattr(Training(**{name: value}), name) == value  # type: ignore[arg-type]
    with pytest.raises(ParallelismError, match=TRAINED[name][0]):
        Training(**{name: "otherwise"})  # type: ignore[arg-type]


def test_a_shape_falls_by_its_name() -> None:
    made = [LRSchedule(shape, steps=3 if shape != "constant" else None) for shape in values.SHAPES]
    assert [each.name for each in made] == [*values.SHAPES]
    assert set(values.OF_OPTIMIZER) <= {*values.OFFLOADS, values.ON_DISK} and "lamb" not in values.ELEMENTWISE
