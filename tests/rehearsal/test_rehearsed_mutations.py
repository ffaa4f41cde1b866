"""Faults in a rehearsed plan's traces and program, a few of those of ``make mutations``: each is found, at its rank and
line; nothing is told of the plan as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.mutations.programs import ADDED, program_mutations
from tests.bench.mutations.traces import KINDS, false_alarms, mutations
from tests.bench.mutations.worlds import Rehearsed, rehearsed


@pytest.fixture(
    scope="module", params=["1f1b, tensor", pytest.param("1f1b, chunks", marks=pytest.mark.slow)],
    ids=["1f1b-tensor", "1f1b-chunks"],
)  # fmt: skip
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    return rehearsed(request.param, tmp_path_factory.mktemp("plan") / "out")


def test_nothing_is_told_of_a_plan_as_it_is(world: Rehearsed) -> None:
    assert false_alarms(world) == []
    assert not [finding for trace in world.traces for finding in trace.findings]


def test_every_fault_in_a_trace_is_found(world: Rehearsed) -> None:
    done = list(mutations(world, 8 * len(KINDS), seed=17))
    assert {one.kind for one in done} == set(KINDS)
    assert [one for one in done if not one.told] == []


@pytest.mark.slow
def test_every_fault_in_the_program_is_found(world: Rehearsed, tmp_path: Path) -> None:
    done = program_mutations(world, len(ADDED), 17, tmp_path)
    assert {one.kind for one in done} == set(ADDED)
    assert [one for one in done if not one.told] == []
