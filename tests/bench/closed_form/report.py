"""The results of published tables as they are printed; ``document`` writes the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table as RichTable

from tests.bench.closed_form.cells import error_cells, percent
from tests.bench.closed_form.fitting.steps import Fit
from tests.bench.closed_form.result import TableResult

HEADINGS = (
    "table", "device", "rows fitted", "reported", "mean", "median", "max", "signed", "rank", "mean, fitted rows",
)  # fmt: skip
"""Errors are those of the reported rows, but for the last."""
HALVES = ("fitted", "reported")
MANY, FEW = 6, 4


def summaries(results: Sequence[TableResult]) -> list[tuple[str, ...]]:
    """The lines below ``HEADINGS``: each result's, and below a table of several devices one over all of them.

    Of a table of more than ``MANY`` devices those with fewer than ``FEW`` rows are told in that line alone.
    """
    lines = []
    for name in dict.fromkeys(result.name for result in results):
        of = [result for result in results if result.name == name]
        lines += [_summary(result) for result in of if len(of) <= MANY or len(result.points) >= FEW]
        if len(of) > 1:
            halves = [tuple(point for result in of for point in getattr(result, half)) for half in HALVES]
            lines.append(_summary(replace(of[0], series="all", fitted=halves[0], reported=halves[1])))
    return lines


def _summary(result: TableResult) -> tuple[str, ...]:
    return (
        result.name, result.series, str(len(result.fitted)), str(len(result.reported)), *error_cells(result.errors),
        percent(result.fitted_errors.mean) if result.fitted_errors else "–",
    )  # fmt: skip


def within_sizes(result: TableResult) -> str:
    """Rank correlation within each model size, on all of the table's rows: half of them are seldom enough."""
    whole = result.all_errors
    if whole is None or not whole.rank_within:
        return ""
    return ", ".join(f"{group} {value:.2f} ({count} rows)" for group, count, value in whole.rank_within)


def print_results(results: Sequence[TableResult], folder: str, console: Console) -> None:
    """All results as a table, then the ranks within sizes and what was left out."""
    table = RichTable(title=f"Predicted against measured, {folder}", title_justify="left")
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if place < 2 else "right", no_wrap=place < 2)
    for line in summaries(results):
        table.add_row(*line)
    console.print(table)
    console.print("Errors are of the reported rows: odd ones, on which nothing was fitted.", highlight=False)
    for result in results:
        if within_sizes(result):
            console.print(f"Rank within sizes, {result.name} {result.series}: {within_sizes(result)}", highlight=False)
    for result in results:
        for count, reason in result.left_out:
            console.print(f"Left out, {result.name}: {count} rows, {reason}", highlight=False, markup=False)


def print_fit(fit: Fit, console: Console) -> None:
    """The tables' errors before and after, and the lines for the profile."""
    table = RichTable("table", "rows", "fitted: before", "after", "reported: before", "after", title=fit.device)
    for before, after in zip(fit.before, fit.after, strict=True):
        halves = ((before.fitted, after.fitted), (before.reported, after.reported))
        cells = [percent(errors.mean) if errors else "–" for half in halves for errors in half]
        counted = [str(half.count) if half else "0" for half in (after.fitted, after.reported)]
        table.add_row(after.table, " + ".join(counted), *cells)
    console.print(table)
    console.print(fit.toml(), highlight=False, markup=False, soft_wrap=True)
