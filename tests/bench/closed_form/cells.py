"""Errors as cells of a table."""

from __future__ import annotations

from tests.bench.closed_form.metrics import Errors


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
