from __future__ import annotations

import pytest

from autoplan.ir.typed_program import Compute, Lowered, Move
from autoplan.lower.after_search import program_of
from tests.support import hand_made
from tests.support.records import record_of


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    return program_of(record_of(hand_made.llama(), "1x4 cpu", dp=2, tp=2, pp=1, micro_batch=2))


def test_the_loss_is_the_last_stage_s_output_and_a_sum_over_the_ranks_of_the_batch(lowered: Lowered) -> None:
    assert lowered.loss.type.shape == () and lowered.loss in lowered.stages[-1].outputs
    assert {axis: str(lowered.loss.layout.state(axis)) for axis in ("dp", "mb")} == {"dp": "P", "mb": "P"}


def test_every_local_shape_is_its_layout_s(lowered: Lowered) -> None:
    for block in lowered.blocks:
        for value in (*block.inputs, *block.externals, *block.parameters, *(s.value for s in block.body)):
            assert value.layout.local_shape(value.type.shape, lowered.mesh) == value.local_shape


def test_a_body_runs_on_the_axes_that_ask_for_it(lowered: Lowered) -> None:
    computes = [s for block in lowered.blocks for s in block.body if isinstance(s, Compute)]
    with_body = [c for c in computes if c.body]
    assert with_body, "a vocabulary or a loss that is split runs a body of its own"
    for compute in computes:
        asked = tuple(axis for axis, way in compute.strategies if way.body)
        assert compute.body_axes == asked and bool(compute.body) == bool(asked)


def test_each_move_ends_in_another_layout_by_collectives_on_the_mesh(lowered: Lowered) -> None:
    moves = [s for block in lowered.blocks for s in block.body if isinstance(s, Move)]
    assert moves
    for move in moves:
        assert move.collectives and all(step.axis == "tp" for step in move.collectives)
