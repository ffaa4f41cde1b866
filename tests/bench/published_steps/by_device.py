"""The errors of planned rows by device, as a part of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.closed_form.cells import percent
from tests.bench.closed_form.metrics import errors_of
from tests.bench.published_steps.answered import Answered
from tests.bench.published_steps.intervals import intervals, told_rows

HEADINGS = "| device | steps | mean error | largest | measured / predicted |\n| --- | --: | --: | --: | --- |"


def by_device(answered: Sequence[Answered]) -> str:
    """A line a device that has enough rows, the most rows first."""
    within, lines = intervals(answered), [HEADINGS]
    for device, told in sorted(told_rows(answered).items(), key=lambda item: -len(item[1])):
        errors, (low, high, _) = errors_of([one.point for one in told]), within[device]
        assert errors is not None  # told_rows has none without rows
        mean, largest = percent(errors.mean), percent(errors.maximum)
        lines.append(f"| {device} | {len(told)} | {mean} | {largest} | {low:.2f} to {high:.2f} |")
    return "\n".join(lines)
