"""The errors of planned rows by family, as a part of docs/appendix/accuracy.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.bench.closed_form.cells import percent, rank
from tests.bench.closed_form.metrics import Errors, errors_of
from tests.bench.published_steps.answered import Answered
from tests.bench.published_steps.intervals import intervals

HEADINGS = (
    "family", "device", "rows", "mean", "median", "max", "bias", "mean, fitted rows", "rank within a size",
    "closed form: mean", "max", "don't fit",
)  # fmt: skip

INTERVALS = """Measured over predicted, from the 10th to the 90th percentile, no narrower than to 1: a prediction's
interval, as profiles have it. Of rows on which nothing was fitted, of all where these are fewer than five; DeepSpeed of
2021 and deterministic kernels are left out.

| device | rows | low | high |
| --- | --- | --- | --- |"""


def printed(answered: Sequence[Answered]) -> str:
    """The table, then the rows without a plan by reason, those that don't fit, and devices' intervals."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *summary(answered)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    reasons = Counter((one.row.family, one.plan.reason) for one in answered if not one.is_planned)
    told = [f"- {family}: {count} rows not planned: {short(reason)}" for (family, reason), count in reasons.items()]
    parts = (table, "\n".join(told), memory(answered), worst(answered), intervals_table(answered))
    return "\n\n".join(part for part in parts if part)


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


def intervals_table(answered: Sequence[Answered]) -> str:
    """What devices' profiles say of how far a step may be from its prediction."""
    found = intervals(answered)
    rows = [f"| {device} | {rows} | {low:.2f} | {high:.2f} |" for device, (low, high, rows) in found.items()]
    return "\n".join((INTERVALS, *rows)) if rows else ""


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
