from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import AutoplanError
from autoplan.ir.choice import Alternative
from autoplan.ir.layout import Layout
from autoplan.ir.record import PlanRecord
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism
from autoplan.verify.variants import in_float64
from tests.support import hand_made
from tests.support.records import record_of


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    return record_of(hand_made.llama(layers=3), "1x4 cpu", dp=2, tp=2, pp=1, micro_batch=2)


def test_a_record_determines_its_program(record: PlanRecord) -> None:
    other = Alternative("another", Parallelism(), 1.0, 0)
    assert program_of(record) == program_of(record) == program_of(replace(record, alternatives=(other,)))


def test_in_float64_the_same_plan_computes_in_float64(record: PlanRecord) -> None:
    exact = in_float64(record)
    assert exact.training.precision == "fp64" and exact.chosen == record.chosen
    floating = [p.type.dtype for p in exact.model.parameters]
    floating += [n.type.dtype for b in exact.model.blocks for n in b.nodes if n.type.floating]
    assert set(floating) == {"float64"}
    assert [v.type.dtype for v in exact.model.batch] == ["int64", "int64"]
    assert {s.value.name for b in program_of(exact).blocks for s in b.body}


def test_a_choice_whose_layouts_don_t_follow_is_refused(record: PlanRecord) -> None:
    index = next(i for i, block in enumerate(record.model.blocks) if block.name == "Layer")
    choice = record.chosen.blocks[index]
    whole = Layout.of(3, {}, record.chosen.mesh)
    broken = replace(choice, outputs=(whole,) * len(choice.outputs), hops=())
    blocks = tuple(broken if i == index else b for i, b in enumerate(record.chosen.blocks))
    with pytest.raises((AutoplanError, KeyError, AssertionError)):
        program_of(replace(record, chosen=replace(record.chosen, blocks=blocks)))
