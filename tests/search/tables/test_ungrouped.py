"""A planned model with its tables as they were traced, so that it is searched anew as what was traced is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autoplan
from autoplan import Parallelism, Training
from autoplan.ir.graph import Model
from autoplan.ir.tables import LOOKUPS
from autoplan.search.tables.place import Choice
from autoplan.search.tables.table_groups import tables_of
from autoplan.search.tables.ungrouped import ungrouped
from tests.support.planning import parallelize_alone
from tests.support.recommenders import MIXED, Recommender, batch, planned

TABLES: tuple[Choice, ...] = tuple(("table", at % 4) for at in range(6))


class Columns(nn.Module):
    """A table of one index for each row, kept as a dim of its own, and one whose vectors the module itself reshapes."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.flat = nn.Embedding(40, 4), nn.Embedding(24, 4)
        self.top = nn.Linear(8, 1)

    def forward(self, kept: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.kept(kept).flatten(1), self.flat(flat).reshape(-1, 2, 2).flatten(1)], 1)
        return self.top(x).square().mean()


def traced(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Model:
    return parallelize_alone(module, "1x1 cpu", inputs, parallelism=Parallelism(dp=1)).record.model


def looked_up(model: Model) -> list[tuple]:
    """Of each table what it is called, how it is looked up and by what; where its vectors go."""
    return [(each.parameter, each.table, each.indices, each.scales, each.node.name, each.node.type, each.node.module)
            for each in tables_of(model)]  # fmt: skip


def operators(model: Model) -> list[tuple]:
    return [(node.name, node.op, node.type) for block in model.blocks for node in block.nodes]


@pytest.mark.parametrize("chosen", [MIXED, TABLES], ids=["mixed", "whole"])
@pytest.mark.parametrize("training", [Training(), Training(optimizer="rowwise-adagrad", compile=False)], ids=str)
def test_a_planned_model_is_again_what_was_traced(chosen: tuple[Choice, ...], training: Training) -> None:
    plan, model = planned(chosen, training), traced(Recommender(), batch())
    found = ungrouped(plan.record.model)
    assert any(node.op == LOOKUPS for block in plan.record.model.blocks for node in block.nodes)
    assert looked_up(found) == looked_up(model) and operators(found) == operators(model)
    assert {p.name: p for p in found.parameters} == {p.name: p for p in model.parameters}
    assert ungrouped(model) is model


def test_vectors_that_the_module_reshapes_stay_reshaped() -> None:
    inputs = torch.randint(24, (16, 1)), torch.randint(24, (16,))
    asked = Parallelism(tensor_system="table-parallel")
    plan, model = parallelize_alone(Columns(), "1x4 cpu", inputs, parallelism=asked), traced(Columns(), inputs)
    found = ungrouped(plan.record.model)
    assert looked_up(found) == looked_up(model) and operators(found) == operators(model)


@pytest.mark.parametrize("tables", ["device", "host"])
def test_what_if_nothing_changed_is_the_plan_that_was(tables: str) -> None:
    training = Training(optimizer="rowwise-adagrad", compile=False)
    asked = Parallelism(tensor_system="table-parallel", tables=tables)
    plan = parallelize_alone(Recommender(), "1x4 cpu", batch(), parallelism=asked, training=training)
    again = plan.what_if(batch=16)
    assert str(again) == str(plan)
    assert again.predicted.step_time_s == pytest.approx(plan.predicted.step_time_s)
    assert again.record.model.parameters == plan.record.model.parameters


def test_tables_are_placed_anew_on_another_cluster() -> None:
    training = Training(optimizer="rowwise-adagrad", compile=False)
    plan = planned(MIXED, training).what_if(cluster_spec="1x2 cpu")
    fresh = autoplan.parallelize(
        Recommender(), "1x2 cpu", batch(), training=training, parallelism=plan.record.asked.parallelism
    )
    assert plan.predicted.step_time_s == pytest.approx(fresh.predicted.step_time_s)
    assert plan.verify().passed
