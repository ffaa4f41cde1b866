"""Errors, ranks and halves of hand-made points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.closed_form.halves import split
from tests.bench.closed_form.metrics import Point, errors_of, spearman
from tests.bench.closed_form.result import results_of


def points(pairs: list[tuple[float, float]], group: str = "all") -> list[Point]:
    return [Point(row, f"row {row}", group, "device", *pair) for row, pair in enumerate(pairs, start=1)]


def test_errors_by_hand() -> None:
    errors = errors_of(points([(1.1, 1.0), (1.8, 2.0), (3.0, 3.0), (2.0, 4.0)]))
    assert errors is not None
    assert errors.count == 4
    assert errors.mean == pytest.approx((0.1 + 0.1 + 0.0 + 0.5) / 4)
    assert errors.median == pytest.approx(0.1)
    assert errors.maximum == pytest.approx(0.5)
    assert errors.signed == pytest.approx((0.1 - 0.1 + 0.0 - 0.5) / 4)
    assert errors.rank == pytest.approx(0.8)  # the ranks 1 2 4 3: 1 - 6·2 / (4·15)


def test_nothing_has_no_errors_and_three_points_no_rank() -> None:
    assert errors_of([]) is None
    assert spearman(points([(1, 1), (2, 2), (3, 3)])) is None
    assert spearman(points([(1, 1), (1, 2), (1, 3), (1, 4)])) == 0.0


def test_ranks_within_a_group_are_stated_beside_the_whole() -> None:
    rising, falling = [(1.0, 1.0), (2, 2), (3, 3), (4, 4)], [(40.0, 10.0), (30, 20), (20, 30), (10, 40)]
    mixed = points(rising, "small") + points(falling, "large")
    errors = errors_of(mixed)
    assert errors is not None and errors.rank is not None
    assert errors.rank_within == (("small", 4, pytest.approx(1.0)), ("large", 4, pytest.approx(-1.0)))
    assert 0 < errors.rank < 1


@given(st.lists(st.integers(1, 1000), min_size=4, max_size=20, unique=True), st.floats(0.1, 10))
def test_rank_is_kept_by_any_rising_map(measured: list[int], power: float) -> None:
    pairs = [(value**power, value) for value in measured]
    assert spearman(points(pairs)) == pytest.approx(1.0)


@given(st.lists(st.integers(1, 50), max_size=40))
def test_halves_part_the_rows(rows: list[int]) -> None:
    held = [Point(row, "", "", "", 1.0, 1.0) for row in rows]
    fitted, reported = split(held)
    assert len(fitted) + len(reported) == len(held)
    assert not {point.row for point in fitted} & {point.row for point in reported}
    assert len({point.row for point in fitted}) == (len(set(rows)) + 1) // 2


def test_a_result_for_each_series_and_an_analytic_table_is_reported_whole() -> None:
    two = [*points([(1, 1), (2, 2)]), Point(3, "", "all", "other", 1.0, 1.0)]
    first, second = results_of("table", "time, s", two, "", "file.csv", [(1, "why")])
    assert (len(first.fitted), len(first.reported), len(second.fitted)) == (1, 1, 1)
    assert first.left_out == ((1, "why"),) and not second.left_out
    (whole,) = results_of("table", "bytes", two[:2], "", "file.csv", halved=False)
    assert len(whole.reported) == 2 and not whole.fitted
