"""The errors of planned rows by family, as a part of docs/appendix/accuracy.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.validation.metrics import Errors, Point, errors_of
from cost_models.validation.report import percent, rank
from tests.bench.published_steps.price import Planned
from tests.bench.published_steps.rows import LAST, Published

HEADINGS = (
    "family", "device", "rows", "mean", "median", "max", "bias", "mean, fitted rows", "rank within a size",
    "closed form: mean", "max", "don't fit",
)  # fmt: skip

UNLIKE = ("sc21_zero3", "megatron_core")
"""Families whose programs no price is of: time spent in Python, and deterministic kernels."""


@dataclass(frozen=True)
class Answered:
    """A row and its plan."""

    row: Published
    plan: Planned

    @property
    def is_planned(self) -> bool:
        return bool(self.plan.plan)

    @property
    def point(self) -> Point:
        predicted = self.plan.step_s
        if self.row.rank:
            predicted = float(self.plan.last_bytes if self.row.rank == LAST else self.plan.peak_bytes)
        return Point(self.row.row, self.row.label, self.row.group, self.row.device, predicted, self.row.measured)

    @property
    def closed(self) -> Point:
        row = self.row
        return Point(row.row, row.label, row.group, row.device, row.closed, row.measured)


def printed(answered: Sequence[Answered]) -> str:
    """The tables, then the rows without a plan by reason, then those that don't fit."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *summary(answered)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    reasons = Counter((one.row.family, one.plan.reason) for one in answered if not one.is_planned)
    told = [f"- {family}: {count} rows not planned: {short(reason)}" for (family, reason), count in reasons.items()]
    parts = (table, "\n".join(told), memory(answered), intervals(answered), worst(answered))
    return "\n\n".join(part for part in parts if part)


def intervals(answered: Sequence[Answered]) -> str:
    """Of each device what its profile's [accuracy] is taken from: the 10th and 90th percentile of measured over
    predicted step time, of all rows that ran a program like ours, the fitted ones too."""
    like = [one for one in answered if one.is_planned and one.row.ran and not one.row.rank]
    like = [one for one in like if one.row.family not in UNLIKE]
    lines = []
    for device in dict.fromkeys(one.row.device for one in like):
        ratios = [1 / (1 + one.point.error) for one in like if one.row.device == device]
        low, high = np.percentile(ratios, (10, 90))
        lines.append(f"- {device}: {low:.2f} to {high:.2f}, of {len(ratios)} rows")
    told = "Measured over predicted, the 10th and 90th percentile of each device (its profile's `[accuracy]`):"
    return f"{told}\n\n" + "\n".join(lines) if lines else ""


def memory(answered: Sequence[Answered]) -> str:
    """Rows that ran and don't fit, and rows that ran out of memory and fit: both are mistakes of the account, or of
    what is reserved of a device."""
    planned = [one for one in answered if one.is_planned]
    ran, not_ran = ([one for one in planned if one.row.ran == whether] for whether in (True, False))
    if not planned:
        return ""
    unfit, fit = [one for one in ran if not one.plan.fits], [one for one in not_ran if one.plan.fits]
    told = [f"Of {len(ran)} rows that ran {len(unfit)} don't fit; of {len(not_ran)} that ran out of memory {len(fit)} "
            "fit."]  # fmt: skip
    told += [f"- {one.row.family}: {one.row.label}, {one.plan.peak_bytes / 1e9:.1f} GB" for one in (*unfit, *fit)]
    return "\n".join(told)


def summary(answered: Sequence[Answered]) -> list[tuple[str, ...]]:
    """A line a family and device, and one over all devices where a family has several."""
    lines = []
    for family in dict.fromkeys(one.row.family for one in answered if one.row.ran):
        of = [one for one in answered if one.row.family == family and one.is_planned]
        devices = list(dict.fromkeys(one.row.device for one in of))
        lines += [cells(family, device, [one for one in of if one.row.device == device]) for device in devices]
        lines += [cells(family, "all", of)] if len(devices) > 1 else []
    return lines


def cells(family: str, device: str, of: Sequence[Answered]) -> tuple[str, ...]:
    odd = [one for one in of if not one.row.fitted]
    errors, even = errors_of([one.point for one in odd]), errors_of([one.point for one in of if one.row.fitted])
    closed, whole = errors_of([one.closed for one in odd]), errors_of([one.point for one in of])
    unfit = sum(not one.plan.fits for one in of)
    counted = f"{len(odd)} + {len(of) - len(odd)}"
    return (
        family, device, counted, *figures(errors), percent(even.mean) if even else "–", ranks(whole),
        *(figures(closed)[0], figures(closed)[2]), f"{unfit} of {len(of)}",
    )  # fmt: skip


def figures(errors: Errors | None) -> tuple[str, str, str, str]:
    if errors is None:
        return ("–",) * 4
    return percent(errors.mean), percent(errors.median), percent(errors.maximum), percent(errors.signed, True)


def ranks(errors: Errors | None) -> str:
    """The lowest correlation within one of the sizes."""
    return "–" if errors is None or not errors.rank_within else rank(min(value for _, _, value in errors.rank_within))


def worst(answered: Sequence[Answered]) -> str:
    """The row of each family that is furthest off."""
    told = []
    for family in dict.fromkeys(one.row.family for one in answered):
        of = [one for one in answered if one.row.family == family and one.is_planned and one.row.ran]
        if of:
            far = max(of, key=lambda one: abs(one.point.error))
            told.append(f"- {family}: {far.row.label}, {percent(far.point.error, True)}, planned as {far.plan.plan}")
    return "The row furthest off of each family:\n\n" + "\n".join(told) if told else ""


def short(reason: str) -> str:
    text = " ".join(reason.split())
    return text if len(text) <= 160 else f"{text[:160].rsplit(' ', 1)[0]} …"


def line(one: Answered) -> str:
    """A row as it is listed."""
    head = f"{one.row.family:22} {one.row.device:18} {one.row.label[:62]:62}"
    if not one.is_planned:
        return f"{head} not planned: {short(one.plan.reason)}"
    fits = "" if one.plan.fits else "  DOESN'T FIT"
    half = "even" if one.row.fitted else "odd"
    if not one.row.ran:
        return f"{head} ran out of memory, {one.plan.peak_bytes / 1e9:.1f} GB {one.plan.plan}{fits or '  FITS'}"
    return (f"{head} {half:4} {percent(one.point.error, True):>7} closed {percent(one.closed.error, True):>7} "
            f"{one.plan.peak_bytes / 1e9:6.1f} GB {one.plan.plan}{fits}")  # fmt: skip
