"""A plan that wasn't taken, planned and put beside the one that was."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.comparison import unchanged
from autoplan.errors import AutoplanError
from autoplan.ir.choice import Alternative
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.report.explain import asked_for
from autoplan.report.words import seconds_text
from autoplan.search.entry import search
from tests.support import hand_made
from tests.support.planning import alone


@cache
def plan() -> Plan:
    model, training, cluster = hand_made.llama(), Training(), ClusterSpec(1, 4, "cpu")
    with alone():
        found = search(model, cluster, training, Parallelism(), (), effort="fast")
    return Plan(PlanRecord(cluster, training, model, *found, None)).what_if(effort="fast")


def explained(name: str) -> str:
    with alone():
        return plan().explain(name)


@pytest.mark.parametrize("name", ["tp=4", "dp=1 tp=2 pp=2", "gpipe", "tensor parallel in the node"])
def test_a_named_plan_is_planned_and_compared(name: str) -> None:
    text = explained(name)
    asked = asked_for(plan().record, name)
    assert asked is not None
    with alone():
        other = plan().what_if(parallelism=asked, effort="fast")
    row = next(line for line in text.splitlines() if line.strip().startswith("time "))
    assert seconds_text(plan().predicted.step_time_s) in row and seconds_text(other.predicted.step_time_s) in row
    longer = other.predicted.step_time_s / plan().predicted.step_time_s - 1
    assert longer > 0 and f"Not taken: it takes {100 * longer:.1f}% longer" in " ".join(text.split())


def test_a_runner_up_is_planned_at_the_price_that_the_report_gave_it() -> None:
    """Its recomputation is found again: pinned it would be that of every layer."""
    with alone():
        runner = plan().what_if(parallelism=Parallelism(dp=1, tp=1, pp=4, recompute="full"), effort="fast")
    p, seconds = runner.parallelism, runner.predicted.step_time_s
    beside = Alternative("dp=1 pp=4", replace(p, recompute="selective"), seconds, 0)
    record = replace(plan().record, alternatives=(beside,))
    asked = asked_for(record, "dp=1 pp=4")
    assert isinstance(asked, Parallelism) and asked == replace(p, recompute=None)
    with alone():
        assert plan().what_if(parallelism=asked, effort="fast").predicted.step_time_s <= seconds * (1 + 1e-9)


def test_each_alternative_of_the_report_can_be_asked_for() -> None:
    for beside in plan().alternatives:
        assert beside.why_not or asked_for(plan().record, beside.name) is not None


def test_what_is_neither_operator_nor_plan_is_refused_as_before() -> None:
    for name in ("mlp.dwn", "zero-9", "auto", ""):
        with pytest.raises(AutoplanError):
            explained(name)


def test_what_does_not_fit_says_so() -> None:
    record = plan().record
    small = Plan(PlanRecord(ClusterSpec(1, 4, "cpu", memory_bytes=2**21), *list(vars(record).values())[1:]))
    with alone():
        assert "Not taken: " in small.explain("ddp")


def test_the_plan_itself() -> None:
    p = plan().parallelism
    sizes = f"dp={p.dp} tp={p.tp} pp={p.pp} zero={p.zero} micro_batch={p.micro_batch}"
    assert "It is the plan itself." in explained(sizes)


def test_a_change_that_touches_nothing_is_told() -> None:
    with alone():
        same = plan().what_if(bandwidth={"nic": 0.5}, effort="fast")
        other = plan().what_if(batch=32, effort="fast")
    assert "one node" in unchanged(plan(), same) and unchanged(plan(), other) == ""
