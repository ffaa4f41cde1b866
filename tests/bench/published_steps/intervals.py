"""The interval that a device's predictions carry: what its published steps were of predicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tests.bench.published_steps.answered import Answered

OTHER_PROGRAMS = ("sc21_zero3", "megatron_core")
"""Families that ran no program like ours: one spent the time in Python, the other in deterministic kernels."""
WITHIN = (10, 90)  # percentiles
FEWEST = 5  # rows, of which percentiles are taken


def told_rows(answered: Iterable[Answered]) -> Mapping[str, list[Answered]]:
    """By device, the steps that its accuracy is told from: those that nothing was fitted on, or all where these are too
    few. A device of too few rows has none."""
    rows: dict[str, list[Answered]] = {}
    for one in answered:
        if one.is_planned and one.row.ran and not one.row.rank and one.row.family not in OTHER_PROGRAMS:
            rows.setdefault(one.row.device, []).append(one)
    held_out = {device: [one for one in of if not one.row.fitted] for device, of in rows.items()}
    told = {device: own if len(own) >= FEWEST else rows[device] for device, own in held_out.items()}
    return {device: own for device, own in told.items() if len(own) >= FEWEST}


def intervals(answered: Iterable[Answered]) -> Mapping[str, tuple[float, float, int]]:
    """(low, high, rows) by device: percentiles of measured over predicted, no narrower than to 1, to two decimals."""
    found = {}
    for device, told in told_rows(answered).items():
        low, high = np.percentile([one.point.measured / one.point.predicted for one in told], WITHIN)
        found[device] = (round(min(float(low), 1.0), 2), round(max(float(high), 1.0), 2), len(told))
    return found
