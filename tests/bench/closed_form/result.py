"""What one table of measurements came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.closed_form.halves import split
from tests.bench.closed_form.metrics import Errors, Point, errors_of


@dataclass(frozen=True)
class TableResult:
    """A table's errors on one series of it, usually a device.

    name, series  the table and what of it this is
    quantity      what was measured, with its unit: "step time, s"
    fitted        points on which figures may have been fitted (even rows)
    reported      points on which none was (odd rows); the error that counts
    assumption    what the reader takes where the source leaves something out
    source        the file
    left_out      rows that weren't priced: (how many, why), ...
    """

    name: str
    series: str
    quantity: str
    fitted: tuple[Point, ...]
    reported: tuple[Point, ...]
    assumption: str
    source: str
    left_out: tuple[tuple[int, str], ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(sorted((*self.fitted, *self.reported), key=lambda point: point.row))

    @property
    def errors(self) -> Errors | None:
        """On the rows that nothing was fitted on."""
        return errors_of(self.reported)

    @property
    def fitted_errors(self) -> Errors | None:
        """On the rows that figures may have been fitted on."""
        return errors_of(self.fitted)

    @property
    def all_errors(self) -> Errors | None:
        """On all rows: for ranks within groups, of which half the rows are seldom enough."""
        return errors_of(self.points)


def results_of(
    name: str, quantity: str, points: Sequence[Point], assumption: str, source: str,
    left_out: Sequence[tuple[int, str]] = (), halved: bool = True,
) -> tuple[TableResult, ...]:  # fmt: skip
    """One result for each series of a table, split into halves; ``halved=False`` where nothing is ever fitted on it
    (an analytic table): all points are reported. What was left out is told with the first."""
    made: list[TableResult] = []
    for series in dict.fromkeys(point.series for point in points):
        of = tuple(point for point in points if point.series == series)
        fitted, reported = split(of) if halved else ((), of)
        skipped = () if made else tuple(left_out)
        made.append(TableResult(name, series, quantity, fitted, reported, assumption, source, skipped))
    return tuple(made)
