"""Tables placed by ILP: no assignment is quicker, none that is over the wall is taken; boxes cover tables once."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.tables import Placed, Table
from autoplan.search.tables.place import REPLICATED, Choice, Rates, Traffic, boxes_of, chosen_in, place
from tests.support.sampling import sampled

TRAFFIC = Traffic(rows=512, ways=2, itemsize=4)


def random_tables(seed: int, count: int) -> list[Table]:
    draw = random.Random(seed)
    pooling = ("sum", "mean", "max", "none")
    sizes = (3, 40, 700, 9000, 120_000)
    return [
        Table(draw.choice(sizes), draw.choice((4, 6, 16)), draw.choice((1, 3, 20)), draw.choice(pooling))
        for _ in range(count)
    ]


def random_rates(seed: int, tables: Sequence[Table]) -> Rates:
    draw = random.Random(seed)
    per = [10 ** draw.uniform(-10, -8) for _ in range(4)]
    total = sum(table.rows * table.width for table in tables)
    return Rates(*per, most_elements=draw.choice((math.inf, 0.8, 0.6)) * total)


def quickest(tables: Sequence[Table], traffic: Traffic, rates: Rates) -> float:
    """The least seconds of all choices that fit, each tried."""
    seconds = [math.inf]
    for chosen in itertools.product(*map(traffic.choices, tables)):
        loads = traffic.total(tables, chosen)
        if max(load.elements for load in loads) <= rates.most_elements:
            seconds.append(rates.seconds(loads))
    return min(seconds)


@pytest.mark.parametrize("seed", sampled(range(24), range(12)))
def test_no_assignment_is_quicker(seed: int) -> None:
    tables = random_tables(seed, 4 if seed % 2 else 5)
    traffic = Traffic(512, 3 if seed % 2 else 2, 4)
    rates = random_rates(seed, tables)
    least_s = quickest(tables, traffic, rates)
    if math.isinf(least_s):
        with pytest.raises(DoesNotFitError):
            place(tables, traffic, rates)
        return
    chosen = place(tables, traffic, rates)
    loads = traffic.total(tables, chosen)
    assert max(load.elements for load in loads) <= rates.most_elements * (1 + 1e-9)
    assert rates.seconds(loads) <= least_s * (1 + 1e-3)


def test_tables_that_fit_nowhere_are_refused() -> None:
    tables = [Table(1000, 16)]
    with pytest.raises(DoesNotFitError, match="1 tables of 16,000 elements: 2 devices have room for 7,000"):
        place(tables, TRAFFIC, Rates(1e-9, 1e-9, 1e-9, most_elements=7000))


def test_a_solver_out_of_time_is_no_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoplan.search.tables.place.TIME_LIMIT_S", 0.0)
    tables, rates = random_tables(0, 5), Rates(1e-9, 1e-9, 1e-9, 1e-9)
    with pytest.raises(ParallelismError, match="5 tables on 2 devices: the solver found no placement within 0 s"):
        place(tables, TRAFFIC, rates)


def test_each_way_is_taken_where_it_is_cheapest() -> None:
    """A small table that is asked for often is replicated; where sums are dear, large ones lie apart; where one is
    larger than a device it is split."""
    small, large = Table(10, 8, 40), Table(100_000, 8, 2)
    rates = Rates(1e-9, 1e-9, 1e-9, 1e-9)
    chosen = place([small, large, large], TRAFFIC, rates)
    assert chosen[0] == REPLICATED and {choice[0] for choice in chosen[1:]} <= {"table", "rows", "columns"}
    wall = Rates(1e-9, 1e-9, 1e-9, 1e-9, most_elements=large.rows * large.width * 0.6)
    assert place([large], TRAFFIC, wall)[0][0] in ("rows", "columns")
    highest = Table(100_000, 8, 2, "max")
    assert place([highest], TRAFFIC, wall) == (("columns", -1),)


@pytest.mark.parametrize("ways", [2, 4])
def test_boxes_cover_each_table_once_and_only_divisors_split_them(ways: int) -> None:
    tables = [Table(10, 8), Table(7, 4, 3, "sum"), Table(100, 12), Table(3, 5)]
    chosen: list[Choice] = [("table", 1), ("rows", -1), ("columns", -1), ("table", 0)]
    placed = boxes_of(tables, chosen, ways)
    for t, table in enumerate(tables):
        cells = [
            (row, column)
            for box in placed.boxes
            if box.table == t
            for row in range(box.row, box.row + box.rows)
            for column in range(box.column, box.column + box.columns)
        ]
        assert sorted(cells) == [(row, column) for row in range(table.rows) for column in range(table.width)]
    taken = [place for box in placed.boxes for place in range(box.start, box.stop)]
    assert len(set(taken)) == len(taken) and max(taken) < placed.elements
    assert dict(chosen_in(placed, ways)) == dict(enumerate(chosen))
    splits = [n for n in range(1, 17) if placed.elements % n == 0]
    assert splits == [n for n in range(1, 17) if ways % n == 0]
    for n in splits:
        assert sum(len(boxes) for boxes in placed.of_members(n)) == len(placed.boxes)


def test_arguments_say_all() -> None:
    placed = boxes_of([Table(10, 8), Table(7, 4, 3, "sum", 2, True)], [("rows", -1), ("table", 1)], 2)
    assert Placed.of(*placed.arguments, placed.elements) == placed
