"""The measurement's own arithmetic, and that it compares what differs; ``make bench-live`` is the measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoplan import ClusterSpec, Parallelism
from autoplan.search.space.pinned_checks import check_product
from tests.bench.live.cases import AUTO, PLANS, ROWS
from tests.bench.live.clusters import CLUSTERS, Missing
from tests.bench.live.measured import Measured, Row
from tests.bench.live.table import failures, places, table, write_section


class Told:
    """What a row needs of a plan: its headline, and what it is predicted to take."""

    def __init__(self, text: str, step_time_s: float) -> None:
        self.text = text
        self.predicted = type("Predicted", (), {"step_time_s": step_time_s})

    def __str__(self) -> str:
        return self.text


def measured(*times: tuple[str, float, float], name: str = "one node") -> Measured:
    """Rows of (plan, predicted, measured); the first is auto's."""
    rows = [Row(AUTO if n == 0 else text, Told(text, told), (seen, seen * 2, seen)) for n, (text, told, seen) in
            enumerate(times)]  # type: ignore[arg-type]  # fmt: skip
    return Measured(name, ClusterSpec.parse("1x4 cpu"), tuple(rows))


GOOD = measured(("a", 1.0, 1.01), ("a", 1.0, 1.0), ("b", 2.0, 2.5), ("c", 3.0, 2.6))


def test_at_least_twelve_plans_that_differ_are_compared() -> None:
    pinned = [plan for name, plan in PLANS.items() if name != AUTO]
    assert len(pinned) >= 12 and len(set(pinned)) == len(pinned)
    for cluster in CLUSTERS:
        for plan in pinned:
            assert isinstance(plan, Parallelism)
            check_product(cluster.devices, plan)
            assert ROWS % ((plan.dp or 1) * (plan.micro_batch or 1)) == 0


def test_the_order_of_times_is_compared_without_auto() -> None:
    assert GOOD.correlation == pytest.approx(1.0)
    assert GOOD.auto_over_fastest == pytest.approx(1.01)
    swapped = measured(("a", 1.0, 1.0), ("a", 1.0, 1.0), ("b", 2.0, 2.6), ("c", 3.0, 2.5))
    assert swapped.correlation == pytest.approx(0.5)
    assert places([2.0, 1.0, 3.0]) == [2, 1, 3]


def test_what_was_not_reached_is_said() -> None:
    assert failures([GOOD]) == []
    late = measured(("a", 1.0, 1.2), ("a", 1.0, 1.0), ("b", 3.0, 2.6), ("c", 2.0, 2.7), name="two nodes")
    assert failures([GOOD, late]) == [
        "two nodes: rank correlation 0.500, asked 0.9",
        "two nodes: auto takes 1.200 times the fastest",
        "auto chose a on every cluster",
    ]
    other = replace(GOOD, rows=measured(("b", 1.0, 1.0), ("a", 1.0, 1.0), ("b", 2.0, 2.0)).rows)
    assert failures([GOOD, other]) == []


def test_the_table_says_both_places() -> None:
    lines = list(table(GOOD))
    assert lines[2] == "| a | a | 1.000 | 1.000 (1.000–2.000) | 1.00 | 1 | 1 |"
    assert lines[3] == "| auto | a | 1.000 | 1.010 (1.010–2.020) | 0.99 |  |  |"
    assert lines[5] == "| c | c | 3.000 | 2.600 (2.600–5.200) | 1.15 | 3 | 3 |"


def test_only_the_section_of_a_document_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.md"
    path.write_text("before\n<!-- live -->\nold\n<!-- /live -->\nafter\n")
    for text in ("new \\1\n", "newer\n"):
        write_section(text, path)
        assert path.read_text() == f"before\n<!-- live -->\n{text}<!-- /live -->\nafter\n"
    bare = tmp_path / "bare.md"
    bare.write_text("a document\n")
    write_section("new\n", bare)
    assert bare.read_text().endswith("<!-- live -->\nnew\n<!-- /live -->\n")


def test_a_missing_tool_is_told_with_the_remedy(tmp_path: Path) -> None:
    one, two = CLUSTERS
    one.check(tmp_path / "none")
    with pytest.raises(Missing, match=r"none is missing: it makes two nodes .* --two-nodes"):
        two.check(tmp_path / "none")
