"""The event simulation of few classes against relaxation over every rank, which shares no code with it."""

from __future__ import annotations

import pytest
from hypothesis import given

from autoplan.rehearsal.world.matching import mismatches
from autoplan.rehearsal.world.simulated_step import Timeline, simulate
from tests.support.rehearsed import every_rank, price, world_of
from tests.support.rehearsed_worlds import Job, Relaxed, jobs
from tests.support.sampling import examples


@pytest.mark.parametrize("eager_bytes", [None, 4])
@examples(60)
@given(jobs)
def test_classes_every_rank_and_relaxation_agree(eager_bytes: int | None, job: Job) -> None:
    ranks = job.programs()
    few = world_of(ranks, job.stage)
    assert mismatches(few) == ()
    relaxed = Relaxed(ranks, eager_bytes)
    expected = relaxed.step()
    for world in (few, every_rank(ranks, job.stage)):
        found = simulate(world, price, eager_bytes)
        assert isinstance(found, Timeline), found.text
        assert found.seconds == expected
        for one in found.classes:
            assert one.end.tolist() == relaxed.ends[one.rank]
            assert one.busy + one.exposed + one.idle == pytest.approx(expected)
