"""Faults put into one rank of correct worlds: each is found, at that rank and line; none is where there is none.

The rank with the fault has calls of its own, so ``partition`` gives it a class of its own; refinement does the rest.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoplan.rehearsal.world.deadlock import Deadlock
from autoplan.rehearsal.world.matching import mismatches
from autoplan.rehearsal.world.simulated_step import simulate
from tests.support.mutations import FAULTS
from tests.support.rehearsed import price, renumbered, world_of
from tests.support.rehearsed_worlds import Job, jobs
from tests.support.sampling import examples


@pytest.mark.parametrize("fault", FAULTS)
@examples(60)
@given(jobs, st.data())
def test_every_fault_is_found_at_its_rank_and_line(fault: str, job: Job, data: st.DataObject) -> None:
    ranks = job.programs()
    rank = data.draw(st.integers(0, job.ranks - 1), label="rank")

    def pick(where: list[int]) -> int:
        assume(where)
        return data.draw(st.sampled_from(where), label="call")

    calls, at = FAULTS[fault](list(job.spans.values()), ranks[rank], pick)
    assume(at.kind != "wait" or at.of)
    concerned = [ranks[rank][number] for number in at.of] if at.kind == "wait" else [at]
    ranks[rank] = renumbered(calls)
    world = world_of(ranks, job.stage)
    found = mismatches(world)
    told = [one for one in found if rank in one.ranks]
    assert told, found
    named = {one.line for one in told if one.ranks == (rank,)}
    named |= {call.line for one in told if len(one.ranks) > 1 for _, call in one.calls}
    if fault.endswith(("send", "receive")) and job.dp * job.tp == 1:
        # one rank a stage, like messages: no rank tells where the dropped one stood, so the other side's is named
        assert any(call.kind not in (at.kind, "collective") for one in told for _, call in one.calls), found
    else:
        assert named & {call.line for call in concerned}, found
    if "dropped" in fault or "without" in fault:
        assert isinstance(simulate(world, price), Deadlock)


@pytest.mark.parametrize("fault", ["dropped collective", "other bytes", "other dtype", "swapped collectives"])
@settings(max_examples=30)
@given(jobs.filter(lambda job: job.tp > 2), st.data())
def test_among_three_the_one_that_deviates_is_named_alone(fault: str, job: Job, data: st.DataObject) -> None:
    ranks = job.programs()
    rank = data.draw(st.integers(0, job.ranks - 1), label="rank")

    def pick(where: list[int]) -> int:
        inside = [at for at in where if ranks[rank][at].span == job.spans["tp"]]
        assume(inside)
        return data.draw(st.sampled_from(inside), label="call")

    calls, at = FAULTS[fault](list(job.spans.values()), ranks[rank], pick)
    ranks[rank] = renumbered(calls)
    (one,) = mismatches(world_of(ranks, job.stage))
    assert (one.ranks, one.line) == ((rank,), at.line)
