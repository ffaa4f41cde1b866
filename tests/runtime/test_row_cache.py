"""The cache of tables' rows: whatever it holds, the rows are those of the table; and which of them give way."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autoplan.runtime.looked_up import BoxGradient
from autoplan.runtime.row_cache import NOWHERE, WEIGHTS, BoxCache

CPU = torch.device("cpu")


def made(rows: int, slots: int) -> BoxCache:
    return BoxCache(torch.arange(rows * 2, dtype=torch.float64).view(rows, 2), slots, 0, CPU)


def here(cache: BoxCache) -> set[int]:
    return {row for row in cache.row_of.tolist() if row != NOWHERE}


@st.composite
def looked_up(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    rows = draw(st.integers(1, 12))
    times = draw(st.lists(st.lists(st.integers(0, rows - 1), max_size=8), max_size=12))
    return rows, draw(st.integers(1, rows)), times


@given(looked_up(), st.data())
def test_updated_rows_are_as_without_a_cache(case: tuple[int, int, list[list[int]]], data: st.DataObject) -> None:
    """Look-ups of any size, and updates of any rows in turn; a field beside the rows goes with them."""
    rows, slots, times = case
    cache, plain = made(rows, slots), made(rows, rows).fields[WEIGHTS].there.clone()
    there, sums = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    for number, asked in enumerate(times):
        wanted = torch.tensor(asked, dtype=torch.int64)
        weights, places = cache.look_up(wanted)
        assert torch.equal(weights[places], plain[wanted])
        changed = wanted.unique()
        gradient = BoxGradient(rows, changed, torch.full((len(changed), 2), float(number), dtype=torch.float64))
        for some in cache.updatable(gradient, gradient.values.any(1)):
            some.matrix(WEIGHTS, plain)[some.places] -= gradient.values[some.which]
            some.matrix("sums", there)[some.places] += gradient.values[some.which][:, 0]
        plain[changed] -= float(number)
        sums[changed] += float(number)
        if data.draw(st.booleans()):
            cache.flush()
            assert torch.equal(cache.fields[WEIGHTS].there, plain) and torch.equal(there, sums)
        if data.draw(st.booleans()):
            cache.flush()
            cache.drop()
    cache.flush()
    assert torch.equal(cache.fields[WEIGHTS].there, plain) and torch.equal(there, sums)


class LeastFrequent:
    """LFU with dynamic ageing, one row after another."""

    def __init__(self, slots: int) -> None:
        self.places: list[int | None] = [None] * slots
        self.uses, self.rank, self.age = [0] * slots, [0] * slots, 0

    def look_up(self, rows: list[int]) -> None:
        """Each once, in their order."""
        counts = {row: rows.count(row) for row in sorted(rows)}
        missing = [row for row in counts if row not in self.places]
        free = [n for n, row in enumerate(self.places) if row is None]
        others = [n for n, row in enumerate(self.places) if row is not None and row not in counts]
        freed = [*free, *sorted(others, key=lambda n: (self.rank[n], n))][: len(missing)]
        self.age = max([self.age, *(self.rank[n] for n in freed)])
        for row, n in zip(missing, freed, strict=True):
            self.places[n], self.uses[n] = row, 0
        for row, count in counts.items():
            n = self.places.index(row)
            self.uses[n] += count
            self.rank[n] = self.uses[n] + self.age


@given(looked_up())
def test_the_rows_that_stay_are_the_most_frequent_ones_with_ageing(case: tuple[int, int, list[list[int]]]) -> None:
    rows, slots, times = case
    cache, rule = made(rows, slots), LeastFrequent(slots)
    asked = missing = 0
    for each in times:
        if len(set(each)) > slots:
            before = here(cache)
            cache.look_up(torch.tensor(each, dtype=torch.int64))
            assert here(cache) == before, "more rows than there is room for leave the cache as it is"
            continue
        asked, missing = asked + len(set(each)), missing + len(set(each) - here(cache))
        cache.look_up(torch.tensor(each, dtype=torch.int64))
        rule.look_up(each)
        assert [None if row == NOWHERE else row for row in cache.row_of.tolist()] == rule.places
        assert cache.rank.tolist() == rule.rank and int(cache.age) == rule.age
        assert set(each) <= here(cache)
    assert (cache.asked, cache.missing) == (asked, missing)


def test_a_row_that_was_used_often_once_goes_in_the_end() -> None:
    """Counts alone would keep it for ever."""
    cache = made(100, 2)
    cache.look_up(torch.tensor([0] * 6))
    for row in range(1, 20):
        cache.look_up(torch.tensor([row]))
        cache.look_up(torch.tensor([row]))
    assert 0 not in here(cache)


def test_frequent_rows_are_there_more_often_than_chance_would_have_it() -> None:
    """Of look-ups by Zipf's law with room for a tenth of the rows."""
    generator, rows = torch.Generator().manual_seed(0), 1000
    shares = 1 / torch.arange(1, rows + 1, dtype=torch.float64)
    cache = made(rows, 100)
    for _ in range(200):
        cache.look_up(torch.multinomial(shares, 64, replacement=True, generator=generator))
    assert cache.missing / cache.asked < 0.7, "rows at random would be missing nine times of ten"


def test_fields_of_several_columns_go_along() -> None:
    cache = made(4, 2)
    there: Tensor = torch.arange(8, dtype=torch.float64).view(4, 2)
    cache.look_up(torch.tensor([3, 1]))
    assert torch.equal(cache.field("kept", there)[cache.find(torch.tensor([1, 3]))], there[[1, 3]])
    cache.field("kept", there)[cache.find(torch.tensor([0]))] = 7.0
    cache.changed[cache.find(torch.tensor([0]))] = True
    cache.look_up(torch.tensor([1, 2]))
    assert there[0].tolist() == [7.0, 7.0]
