"""A table of one's own as it is priced and printed: every line, then the errors on each device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from tests.bench.closed_form.case import Case
from tests.bench.closed_form.cells import error_cells, percent
from tests.bench.closed_form.metrics import Point, errors_of
from tests.bench.closed_form.own_table.columns import read_own
from tests.bench.closed_form.transformer.step import step_seconds


def print_table(path: Path, console: Console) -> None:
    """The table at ``path``; raises OwnTableError where a line can't be read, ProfileError without its device."""
    print_own([point_of(case) for case in read_own(path)], console)


def point_of(case: Case) -> Point:
    """A step with its prediction, in seconds."""
    predicted_s = float(step_seconds(case.model, case.recipe, case.topology).seconds)
    return Point(case.row, case.label, case.group, case.device, predicted_s, case.measured_s)


def print_own(points: Sequence[Point], console: Console) -> None:
    """A prediction without a measurement (NaN) has a dash for one."""
    table = RichTable("line", "predicted, s", "measured, s", "error")
    for column in table.columns[1:]:
        column.justify = "right"
    for point in points:
        known = not math.isnan(point.measured)
        cells = (f"{point.measured:.4g}", percent(point.error, True)) if known else ("–", "–")
        table.add_row(point.label, f"{point.predicted:.4g}", *cells)
    console.print(table)
    for device in dict.fromkeys(point.series for point in points):
        errors = errors_of([p for p in points if p.series == device and not math.isnan(p.measured)])
        if errors is not None:
            mean, median, maximum, signed, order = error_cells(errors)
            counted = f"{errors.count} measured on {device}: mean {mean}, median {median}, max {maximum}"
            console.print(f"{counted}, signed {signed}, rank {order}", highlight=False)
