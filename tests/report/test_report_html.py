"""The page: it loads nothing, its charts lie inside, and every figure is the plan's own."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import Alternative
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Move
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.report.html import report_html
from autoplan.report.html.chart import Scale
from autoplan.report.html.timeline import MOST_DRAWN, stretches_of
from autoplan.report.words import headline
from autoplan.scaling import Scaling, ScalingPoint
from autoplan.search.breakdown import Breakdown, breakdown
from autoplan.search.entry import search
from tests.support import hand_made
from tests.support.sampling import sampled

CLUSTER = ClusterSpec(1, 4, "h100-sxm")
PINNED = (
    Parallelism(dp=2, tp=2, pp=1, micro_batch=1),
    Parallelism(dp=1, tp=2, pp=2, micro_batch=1, pipeline_schedule="1f1b"),
    Parallelism(dp=2, pp=2, tp=1, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2),
    Parallelism(dp=4, tp=1, pp=1, zero=3),
)


@dataclass
class Parsed(HTMLParser):
    """The elements of a page with their attributes, those that are open, and its words."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    words: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def parsed(page: str) -> Parsed:
    found = Parsed()
    found.feed(page)
    assert found.open == []
    return found


@cache
def planned(pinned: Parallelism, cluster: ClusterSpec = CLUSTER) -> PlanRecord:
    model, training = hand_made.llama(), Training()
    chosen, alternatives, report = search(model, cluster, training, pinned, ())
    return PlanRecord(cluster, training, model, chosen, alternatives, report, None)


@pytest.fixture(scope="module", params=sampled(PINNED, PINNED[2:]), ids=str)
def record(request: pytest.FixtureRequest) -> PlanRecord:
    return planned(request.param)


def test_nothing_is_loaded_and_all_is_closed(record: PlanRecord) -> None:
    page = report_html(record)
    for tag, attrs in parsed(page).elements:
        assert "src" not in attrs and tag not in ("img", "iframe")
        assert attrs.get("href", "data:,") == "data:,"
    assert "url(" not in page and "@import" not in page and len(page) < 1_000_000


def test_the_figures_are_the_plan_s(record: PlanRecord) -> None:
    told, elements = Plan(record).to_dict(), parsed(report_html(record)).elements
    predicted = told["chosen"]["predicted"]
    seconds = {(e["data-kind"], e["data-axis"]): float(e["data-seconds"]) for _, e in elements if "data-axis" in e}
    assert sum(seconds.values()) == pytest.approx(predicted["step_time_s"], rel=1e-9)
    bubble_s = predicted["bubble_fraction"] * predicted["step_time_s"]
    assert seconds.get(("bubble", ""), 0.0) == pytest.approx(bubble_s, rel=1e-6, abs=1e-12)
    drawn: dict[tuple[int, str], int] = {}
    for _, e in elements:
        if "data-stage" in e:
            drawn[int(e["data-stage"]), e["data-kind"]] = int(e["data-bytes"])
    held = {(n, kind): size for n, memory in enumerate(predicted["peak_bytes"]) for kind, size in memory.items()}
    assert drawn == {key: size for key, size in held.items() if size and key[1] != "host"}
    names = re.findall(r'<span class="name">([^<]+)</span>', report_html(record))
    place = "rank" if len(record.chosen.stages) > len(predicted["peak_bytes"]) else "stage"
    assert names == [f"{place} {number}" for number in range(len(predicted["peak_bytes"]))]
    dots = {e["data-plan"]: (float(e["data-seconds"]), int(e["data-bytes"])) for _, e in elements if "data-plan" in e}
    peak = max(sum(size for kind, size in m.items() if kind != "host") for m in predicted["peak_bytes"])
    if dots:
        assert dots.pop("chosen") == (predicted["step_time_s"], peak)
    priced = {a["name"]: (a["step_time_s"], a["peak_bytes"]) for a in told["alternatives"] if not a["why_not"]}
    assert dots.items() <= priced.items()


def test_bars_lie_in_their_charts(record: PlanRecord) -> None:
    for tag, e in parsed(report_html(record)).elements:
        if tag == "rect" and e.get("width", "").endswith("%"):
            begin = float(e["x"].rstrip("%"))
            assert begin >= 0 and begin + float(e["width"].rstrip("%")) <= 100.01


def test_a_plan_of_another_version_has_all_of_its_bar() -> None:
    """Its step was predicted shorter than its parts are priced today."""
    record = planned(PINNED[0])
    assert "made by another version" not in report_html(record)
    predicted = record.chosen.predicted
    older = replace(record.chosen, predicted=replace(predicted, step_time_s=predicted.step_time_s / 2))
    page = report_html(replace(record, chosen=older))
    parts = [e for tag, e in parsed(page).elements if tag == "rect" and "data-seconds" in e]
    assert parts and max(float(e["x"][:-1]) + float(e["width"][:-1]) for e in parts) <= 100.01
    assert "made by another version" in page


def test_each_collective_s_bytes_stand_in_a_layer(record: PlanRecord) -> None:
    """Of every redistribution that crosses the links, at the price that the plan lists."""
    page = report_html(record)
    spans = [e for tag, e in parsed(page).elements if tag == "span" and "data-bytes" in e]
    shown = [(int(e["data-bytes"]), float(e["data-seconds"])) for e in spans]
    listed = {(c.bytes, c.seconds / c.count) for c in record.chosen.predicted.collectives}
    assert set(shown) <= listed
    for block in program_of(record).blocks:
        for statement in block.body:
            assert isinstance(statement, Move) or f"<b>{statement.value.name}</b>" in page
    crossing = [c for c in record.chosen.predicted.collectives if c.axis == "tp" and " " in c.where and c.count]
    inside = [c for c in crossing if not c.where.startswith(("gradients", "stage"))]
    assert bool(shown) == bool(inside) and len(shown) >= len({(c.where, c.kind) for c in inside})


def test_the_parts_of_the_step(record: PlanRecord) -> None:
    step = breakdown(record)
    assert all(part.seconds >= 0 for part in step.parts)
    for row in step.spans:
        for before, after in pairwise(row):
            assert after.start_s >= before.end_s - 1e-12
        assert all(span.received_s <= span.end_s - span.start_s for span in row)
    last_s = max(row[-1].end_s for row in step.spans)
    assert last_s + step.once_s == pytest.approx(record.chosen.predicted.step_time_s, rel=1e-9)


def test_devices_that_share_processors_have_a_timeline_as_long_as_their_step() -> None:
    record = planned(PINNED[1], ClusterSpec(1, 4, "cpu"))
    step, predicted = breakdown(record), record.chosen.predicted
    assert max(row[-1].end_s for row in step.spans) + step.once_s == pytest.approx(predicted.step_time_s, rel=1e-9)
    assert sum(part.seconds for part in step.parts) == pytest.approx(predicted.step_time_s, rel=1e-9)


def test_a_schedule_of_many_microbatches_is_thinned_and_says_so() -> None:
    record = planned(PINNED[1])
    short = breakdown(record)
    rows = tuple(
        tuple(replace(span, start_s=span.start_s + n, end_s=span.end_s + n) for n in range(2000) for span in row)
        for row in short.spans
    )
    first, last = stretches_of(rows, 2001.0)
    assert first.first_s == 0 and last.last_s == 2001.0 and first.last_s < last.first_s
    drawn = sum(s.end_s > t.first_s and s.start_s < t.last_s for t in (first, last) for row in rows for s in row)
    assert drawn <= MOST_DRAWN + 4 * len(rows)
    (whole,) = stretches_of(short.spans, 1.0)
    assert (whole.at(0.0), whole.at(1.0)) == (0, 100_000)
    assert isinstance(short, Breakdown)


def test_an_alternative_that_does_not_fit_is_marked() -> None:
    record = planned(PINNED[0])
    step_s = record.chosen.predicted.step_time_s
    over = Alternative("too <large>", Parallelism(dp=4), 2 * step_s, 5 * 2**30, "", None, 0.0, 100 * 2**30)
    page = report_html(replace(record, alternatives=(over,)))
    assert 'class="over" cx=' in page and "too &lt;large&gt;" in page and "<large>" not in page


def test_what_is_far_slower_is_in_the_table_alone() -> None:
    record = planned(PINNED[0])
    step_s = record.chosen.predicted.step_time_s
    near = Alternative("near", Parallelism(dp=4), 2 * step_s, 0, "", None, 0.0, 2**30)
    page = report_html(replace(record, alternatives=(near, replace(near, name="far", step_time_s=9 * step_s))))
    dots = [e["data-plan"] for _, e in parsed(page).elements if "data-plan" in e]
    assert dots == ["chosen", "near"] and "<td>far</td>" in page and "1 that take more than 4 times as long" in page


def test_the_interval_is_drawn_where_it_lies() -> None:
    record = planned(PINNED[0])
    told = Plan(record).to_dict()["interval"]
    (mark,) = (e for _, e in parsed(report_html(record)).elements if "data-low" in e)
    assert (float(mark["data-low"]), float(mark["data-high"])) == (told["low_s"], told["high_s"])


def test_scaling_is_drawn_with_what_does_not_fit_in_words() -> None:
    record = planned(PINNED[0])
    own = ScalingPoint("1x4", 4, 1.0, headline(record), 1.0, 100.0, 0.4)
    devices = (ScalingPoint("1x2", 2, 1.0, why_not="does <not> fit"), own, replace(own, devices=8, tokens_per_s=150.0))
    widths = (own, replace(own, bandwidth=2.0, tokens_per_s=120.0))
    found = Scaling(headline(record), "tokens", "node", devices, widths)
    page = report_html(record, {"scaling": found.to_dict()})
    elements = parsed(page).elements
    assert [(e["data-devices"], e["data-rate"]) for _, e in elements if "data-devices" in e] == [
        ("4", "100.0"), ("8", "150.0"),
    ]  # fmt: skip
    assert [e["data-bandwidth"] for _, e in elements if "data-bandwidth" in e] == ["1.0", "2.0"]
    assert "does &lt;not&gt; fit" in page and "the links inside the node (logarithmic)" in page
    assert "75%" in str(found) and "Scaling" not in parsed(report_html(record)).words


def test_a_rehearsal_is_told() -> None:
    record = planned(PINNED[0])
    data = {
        "plan": headline(record), "passed": True, "devices": 4, "microbatches": 2, "run": 2,
        "classes": [{"ranks": 4, "reason": "all alike", "peak_bytes": 3 * 2**30, "predicted_bytes": 2**31}],
    }  # fmt: skip
    words = parsed(report_html(record, {"rehearsal": data})).words
    assert "would run as planned: 4 ranks, 2 of 2 microbatches" in words
    assert re.search(r"all alike4\s*3.00\s*2.00", words)
    assert "Rehearsal" not in parsed(report_html(record)).words


@pytest.mark.parametrize(("first", "last"), [(0.0, 52.5), (0.0, 0.139), (0.0, 1e6), (0.0, 1.02)])
def test_ticks_are_round_and_few(first: float, last: float) -> None:
    ticks = Scale(first, last).ticks
    assert 3 <= len(ticks) <= 7 and first <= min(ticks) and max(ticks) <= last * (1 + 1e-9)
    step = ticks[1] - ticks[0]
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9)) in (1, 2, 5)


@pytest.mark.parametrize(("first", "last"), [(66.0, 108.0), (0.1, 2.0), (60.0, 2000.0), (1.0, 1e9)])
def test_logarithmic_ticks_lie_inside(first: float, last: float) -> None:
    ticks = Scale(first, last, log=True).ticks
    assert 2 <= len(ticks) <= 7 and all(first <= tick <= last for tick in ticks)
