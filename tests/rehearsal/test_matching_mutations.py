"""Faults put into one rank of correct worlds: each is found, at that rank and line; none is where there is none.

The rank with the fault has calls of its own, so ``partition`` gives it a class of its own; refinement does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoplan.rehearsal.records import Call
from autoplan.rehearsal.world.deadlock import Deadlock
from autoplan.rehearsal.world.matching import mismatches
from autoplan.rehearsal.world.timeline import simulate
from tests.support.rehearsed import price, renumbered, world_of
from tests.support.rehearsed_worlds import Job, jobs

Calls = list[Call]
Pick = Callable[[list[int]], int]
NEW = 1_000_000


def indices(calls: Calls, *kinds: str) -> list[int]:
    return [i for i, call in enumerate(calls) if call.kind in kinds]


def drop(*kinds: str) -> Callable[[Job, Calls, Pick], tuple[Calls, Call]]:
    def dropped(job: Job, calls: Calls, pick: Pick) -> tuple[Calls, Call]:
        at = pick(indices(calls, *kinds))
        return calls[:at] + calls[at + 1 :], calls[at]

    return dropped


def double(job: Job, calls: Calls, pick: Pick) -> tuple[Calls, Call]:
    """Waited for where the first one is."""
    at = pick(indices(calls, "collective"))
    twice = [*calls[: at + 1], replace(calls[at], number=NEW), *calls[at + 1 :]]
    waiting = [replace(c, of=(*c.of, NEW)) if c.kind == "wait" and calls[at].number in c.of else c for c in twice]
    return waiting, calls[at]


def other_span(job: Job, calls: Calls, pick: Pick) -> tuple[Calls, Call]:
    at = pick(indices(calls, "collective"))
    others = [span for span in job.spans.values() if span != calls[at].span]
    assume(others)
    return [*calls[:at], replace(calls[at], span=others[0]), *calls[at + 1 :]], calls[at]


def other(field: str, *kinds: str) -> Callable[[Job, Calls, Pick], tuple[Calls, Call]]:
    def changed(job: Job, calls: Calls, pick: Pick) -> tuple[Calls, Call]:
        at = pick(indices(calls, *kinds))
        value = calls[at].bytes + 2 if field == "bytes" else "float64"
        return [*calls[:at], replace(calls[at], **{field: value}), *calls[at + 1 :]], calls[at]  # type: ignore[arg-type]

    return changed


def swap(job: Job, calls: Calls, pick: Pick) -> tuple[Calls, Call]:
    """Two neighbours on one communicator, of other sizes or lines; each keeps its place's waits."""
    pairs = {}
    for at in indices(calls, "collective"):
        later = [i for i in indices(calls, "collective") if i > at and calls[i].span == calls[at].span]
        if later and (calls[later[0]].line, calls[later[0]].during) != (calls[at].line, calls[at].during):
            pairs[at] = later[0]
    at = pick(list(pairs))
    one, two = calls[at], calls[pairs[at]]
    swapped = list(calls)
    swapped[at], swapped[pairs[at]] = replace(two, number=one.number), replace(one, number=two.number)
    return swapped, two


FAULTS = {
    "dropped collective": drop("collective"),
    "doubled collective": double,
    "other axis": other_span,
    "other bytes": other("bytes", "collective", "send", "receive"),
    "other dtype": other("dtype", "collective", "send", "receive"),
    "swapped collectives": swap,
    "send without receive": drop("receive"),
    "receive without send": drop("send"),
    "missing wait": drop("wait"),
}


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=60)
@given(jobs, st.data())
def test_every_fault_is_found_at_its_rank_and_line(fault: str, job: Job, data: st.DataObject) -> None:
    ranks = job.programs()
    rank = data.draw(st.integers(0, job.ranks - 1), label="rank")

    def pick(where: list[int]) -> int:
        assume(where)
        return data.draw(st.sampled_from(where), label="call")

    calls, at = FAULTS[fault](job, ranks[rank], pick)
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

    calls, at = FAULTS[fault](job, ranks[rank], pick)
    ranks[rank] = renumbered(calls)
    (one,) = mismatches(world_of(ranks, job.stage))
    assert (one.ranks, one.line) == ((rank,), at.line)
