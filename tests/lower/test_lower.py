"""Lowering: every redistribution is there, once, where it is first needed."""

from __future__ import annotations

import pytest

from autoplan.ir.graph import Ref
from autoplan.ir.layout import I, R
from autoplan.ir.typed_program import Compute, Lowered, Move
from autoplan.lower.after_search import program_of
from autoplan.lower.lowering import lower
from autoplan.lower.typecheck import typecheck
from tests.support.hand_made import llama, mlp
from tests.support.records import record_of


@pytest.fixture(scope="module")
def tensor_parallel() -> Lowered:
    return program_of(record_of(llama(), "1x4 cpu", dp=1, tp=4, pp=1))


def test_the_typed_program_checks(tensor_parallel):
    typecheck(tensor_parallel)


def test_a_value_is_moved_to_a_layout_once(tensor_parallel):
    for block in tensor_parallel.blocks:
        moves = [(s.source, s.value.layout) for s in block.body if isinstance(s, Move)]
        assert len(moves) == len(set(moves))


def test_every_name_is_defined_before_it_is_read(tensor_parallel):
    for block in tensor_parallel.blocks:
        known = {v.name for v in (*block.inputs, *block.externals, *block.parameters, *block.buffers)}
        for statement in block.body:
            assert statement.value.name not in known, f"{statement.value.name} is defined twice"
            reads = [statement.source] if isinstance(statement, Move) else names_in(statement)
            assert set(reads) <= known
            known.add(statement.value.name)


def names_in(compute: Compute) -> list[str]:
    found: list[str] = []

    def visit(argument: object) -> None:
        if isinstance(argument, Ref):
            found.append(argument.name)
        elif isinstance(argument, tuple):
            for item in argument:
                visit(item)

    visit(compute.args)
    visit(tuple(v for _, v in compute.kwargs))
    return found


def test_a_repeated_block_gives_what_it_takes(tensor_parallel):
    layer = tensor_parallel.blocks[1]
    assert layer.inputs[0].layout == layer.outputs[0].layout


def test_views_are_local(tensor_parallel):
    layer = tensor_parallel.blocks[1]
    heads = next(s.value for s in layer.body if isinstance(s, Compute) and s.value.name == "q4")
    assert heads.local_shape[2] * 4 == heads.type.shape[2]


def test_a_parameter_used_as_replicated_is_stored_whole_and_summed_once():
    lowered = program_of(record_of(mlp(), "1x4 cpu", dp=4, tp=1, pp=1, zero=0))
    for parameter in lowered.parameters:
        assert parameter.reduce_axes == ("dp",)
        assert parameter.layout.state("dp") == I
    used = lowered.blocks[1].parameters[0]
    assert used.layout.state("dp") == R


def test_a_split_parameter_is_split_and_never_summed_over_its_axis(tensor_parallel):
    down = next(p for p in tensor_parallel.parameters if p.name.endswith("down.weight"))
    assert down.local_shape == (down.type.shape[0], down.type.shape[1] // 4)
    assert "tp" not in down.reduce_axes


def test_stages_know_what_they_hold():
    record = record_of(llama(tie=True), "1x2 cpu", dp=1, tp=1, pp=2, micro_batch=2)
    lowered = program_of(record)
    assert lowered.stages[0].first == 0 and lowered.stages[-1].last == len(lowered.segments)
    assert lowered.stages[0].last == lowered.stages[1].first
    tied = next(p for p in lowered.parameters if p.name == "0.weight")
    assert tied.stages == (0, 1)
    given, taken = lowered.stages[0].outputs, lowered.stages[1].inputs
    assert [(v.type, v.layout, v.local_shape) for v in given] == [(v.type, v.layout, v.local_shape) for v in taken]


def test_the_same_choice_lowers_to_the_same_program():
    record = record_of(mlp(), "1x4 cpu", dp=2, tp=2, pp=1)
    assert lower(record.model, record.chosen) == lower(record.model, record.chosen)
