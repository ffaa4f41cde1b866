"""A table of one's own as it is printed: every line, then the errors on each device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from cost_models.validation.metrics import Errors, Point, errors_of


def percent(share: float, signed: bool = False) -> str:
    """0.0432 as "4.3%"."""
    return f"{share:+.1%}" if signed else f"{share:.1%}"


def rank(value: float | None) -> str:
    """A correlation; a dash where there are too few rows for one."""
    return "–" if value is None else f"{value:.2f}"


def error_cells(errors: Errors | None) -> tuple[str, ...]:
    """Mean, median, maximum, signed mean and rank; dashes where there is no point."""
    if errors is None:
        return ("–",) * 5
    shares = (percent(errors.mean), percent(errors.median), percent(errors.maximum), percent(errors.signed, True))
    return (*shares, rank(errors.rank))


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
