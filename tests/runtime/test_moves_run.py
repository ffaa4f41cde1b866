"""A plan whose redistribution takes steps over several axes: they are lowered, proven, exported, run and verified."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoplan.ir.choice import Hop, tensor_mesh
from autoplan.ir.layout import Layout, P
from autoplan.ir.record import PlanRecord
from autoplan.redistribution import redistribute
from autoplan.verify import verify
from tests.support.hand_made import mlp
from tests.support.records import record_of

pytestmark = pytest.mark.usefixtures("verified_in_pool")


def detoured(record: PlanRecord) -> tuple[PlanRecord, tuple[str, ...]]:
    """The plan with each of a block's reductions led past a layout whose dims are split the other way round, and the
    operators that it then takes."""
    mesh = tensor_mesh(record.chosen.mesh)
    ops: list[str] = []

    def around(hop: Hop, index: int) -> Hop:
        if hop.source.state("tp") != P or hop.source.rank != 2:
            return hop
        kind = record.model.blocks[index].types()[hop.value]
        beside = tuple((axis, state) for axis, state in hop.target.rest if axis != "tp")
        first = Layout((("mb", "dp"), ("tp",)), beside)
        other = Layout((("mb", "tp"), ("dp",)), beside)
        ends = (hop.source, first, other, first, hop.target)
        steps = tuple(
            step
            for here, there in itertools.pairwise(ends)
            for step in redistribute(here, there, kind, mesh, carries_gradient=True)
        )
        ops.extend(step.op for step in steps)
        return replace(hop, steps=steps)

    blocks = tuple(
        replace(block, hops=tuple(around(hop, index) for hop in block.hops))
        for index, block in enumerate(record.chosen.blocks)
    )
    return replace(record, chosen=replace(record.chosen, blocks=blocks)), tuple(ops)


def test_a_detour_over_both_axes_changes_nothing_but_the_program():
    record, ops = detoured(record_of(mlp(), "1x4 cpu", dp=2, tp=2, pp=1, micro_batch=8))
    assert "permute" in ops and "reduce_scatter" in ops
    report = verify(record, None, None, seed=0, raises=True)
    assert report.passed, str(report)
