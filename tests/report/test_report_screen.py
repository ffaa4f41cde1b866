"""The report of one screen: 40 lines, 100 columns, whatever the plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import Alternative, StageChoice, StageMemory
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.report.price_tables import alternatives_section, collectives_section
from autoplan.report.screen import LINES, WIDTH, screen_text
from autoplan.report.waits import per_device
from autoplan.report.words import headline
from autoplan.search.entry import search
from tests.support import hand_made

CLUSTER = ClusterSpec(1, 4, "cpu")


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    model, training = hand_made.llama(), Training()
    pinned = Parallelism(dp=1, tp=1, pp=4, micro_batch=1, pipeline_schedule="1f1b")
    chosen, alternatives, report = search(model, CLUSTER, training, pinned, ())
    return PlanRecord(CLUSTER, training, model, chosen, alternatives, report, None)


def crowded(record: PlanRecord) -> PlanRecord:
    """The same with more of everything than a screen holds, under long names."""
    one = record.alternatives[0]
    others = tuple(replace(one, name=f"{n} {'long ' * 8}", why_not="", step_time_s=1.0 + n) for n in range(40))
    model = replace(record.model, notes=tuple(f"Note {n}: {'word ' * 60}" for n in range(20)), name="Model" * 40)
    predicted = replace(record.chosen.predicted, peak_bytes=record.chosen.predicted.peak_bytes * 16)
    chosen = replace(record.chosen, predicted=predicted, stages=record.chosen.stages * 16)
    return replace(record, alternatives=others, model=model, chosen=chosen)


def test_it_is_one_screen(record: PlanRecord) -> None:
    for one in (record, crowded(record)):
        lines = screen_text(one).splitlines()
        assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
        assert lines[-1].startswith("everything else:")
    told = screen_text(crowded(record))
    for section in ("Why", "Memory of one device", "Beside it", "Collectives of one step"):
        assert f"\n{section}" in told
    assert "more stages" in told and "more alternatives" in told and "more reasons" in told


def test_no_row_is_wrapped(record: PlanRecord) -> None:
    told = screen_text(record).split("\n\n")
    for section in told:
        title, *rows = section.splitlines()
        if title.startswith(("Memory", "Beside", "Collectives")):
            assert all(row[2:3].strip() for row in rows if "…" not in row[:4] and not title.startswith("Memory"))


def test_only_what_applies_stands_beside_it(record: PlanRecord) -> None:
    never = Alternative("expert-parallel", Parallelism(), inf, 0, "the model has no mixture of experts")
    told = screen_text(replace(record, alternatives=(*record.alternatives, never)))
    assert "expert-parallel" not in told and "no mixture" not in told


def test_the_fullest_stage_stands_there_however_many_there_are(record: PlanRecord) -> None:
    held = [StageMemory(n * 2**20, 0, 0, 0, 0) for n in (1, 2, 50, 3)] * 8
    predicted = replace(record.chosen.predicted, peak_bytes=tuple(held[:32]))
    chosen = replace(record.chosen, predicted=predicted, stages=record.chosen.stages * 8)
    section = next(s for s in screen_text(replace(record, chosen=chosen)).split("\n\n") if s.startswith("Memory"))
    shown = [line.split() for line in section.splitlines()[2:-1]]
    assert {row[0] for row in shown} <= {str(n) for n in range(2, 32, 4)} and all(row[1] == "50.0" for row in shown)


def test_messages_are_those_that_one_device_receives(record: PlanRecord) -> None:
    listed = [c for c in record.chosen.predicted.collectives if c.kind == "send"]
    assert len(listed) == 3
    (one,) = [c for c in per_device(record) if c.kind == "send"]
    # a stage in the middle receives an activation and a gradient of each microbatch: half of what crosses its borders
    assert one.count == 2 * record.chosen.microbatches == listed[0].count
    assert one.seconds == pytest.approx(max((a.seconds + b.seconds) / 2 for a, b in pairwise(listed)))
    for text in (screen_text(record), collectives_section(record)):
        assert "from stage to stage" in text and "stage 0 -> 1" not in text


def test_table_and_header_agree_on_what_is_recomputed(record: PlanRecord) -> None:
    stages = tuple(StageChoice(s.first, s.last, 0, 1) for s in record.chosen.stages)
    mixed = replace(record, chosen=replace(record.chosen, stages=stages))
    row = next(line for line in alternatives_section(mixed).splitlines() if line.strip().startswith("chosen"))
    assert "recompute" in headline(mixed) and headline(mixed).split(",")[0] in row
    assert headline(mixed).split(", ")[-1] in " ".join(alternatives_section(mixed).split())
