"""What changed between two plans, as Markdown: every figure is one of theirs."""

from __future__ import annotations

from functools import cache

from autoplan.cluster import ClusterSpec
from autoplan.difference import MOST, difference
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.report.words import seconds_text
from autoplan.search.entry import search
from tests.support import hand_made
from tests.support.planning import alone


@cache
def planned(pinned: Parallelism, device: str = "cpu") -> Plan:
    model, training, cluster = hand_made.llama(), Training(), ClusterSpec(1, 4, device)
    with alone():
        return Plan(PlanRecord(cluster, training, model, *search(model, cluster, training, pinned, ()), None))


DATA, TENSOR = Parallelism(dp=4, tp=1, pp=1, zero=0), Parallelism(dp=1, tp=4, pp=1)


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_plan_and_itself_differ_in_nothing() -> None:
    text = difference(planned(DATA), planned(DATA))
    assert text.count("no change.") == 3 and text.startswith("### Plan of Llama: 1x4 cpu\n")
    assert all(row[1] == row[2] and row[3] == "" for row in rows(text)[2:])


def test_both_predictions_stand_side_by_side() -> None:
    before, after = planned(DATA), planned(TENSOR)
    told = {row[0]: row[1:] for row in rows(difference(before, after))}
    times = [plan.predicted.step_time_s for plan in (before, after)]
    assert told["step time"] == [*map(seconds_text, times), f"{100 * (times[1] / times[0] - 1):+.1f}%"]
    assert told["plan"][:2] == [str(before), str(after)]
    mfu = [plan.predicted.mfu for plan in (before, after)]
    assert told["MFU"][2] == f"{100 * (mfu[1] - mfu[0]):+.1f} points" and "tokens a second" in told
    gradients = next(c for c in before.predicted.collectives if c.where == "gradients")
    assert (
        told["gradients: all-reduce over dp"][1] == "none"
        and f"{gradients.count:,} x " in told["gradients: all-reduce over dp"][0]
    )


def test_operators_that_are_split_another_way_are_named() -> None:
    before, after = planned(DATA), planned(TENSOR)
    text = difference(before, after)
    section = rows(text[text.index("**Operators split another way**") :])[2:]
    assert 0 < len(section) <= MOST and {row[1] for row in section} <= {"dp", "tp"}
    names = {f"{b.name} {n.name}" for b in before.record.model.blocks for n in b.nodes}
    assert {row[0] for row in section} <= names
    assert all(len(row) == 4 for row in section)


def test_clusters_may_differ() -> None:
    text = difference(planned(DATA), planned(DATA, "h100-sxm"))
    assert (
        text.startswith("### Plan of Llama: 1x4 cpu → 1x4 h100-sxm") and "**Operators split another way**: no" in text
    )
