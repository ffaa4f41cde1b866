"""How far predictions are from measurements, and whether they order alike."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

FEWEST_RANKED = 4
"""Points below which no rank correlation is stated: three in order say nothing."""


@dataclass(frozen=True)
class Point:
    """One measurement with its prediction, both in the table's unit and positive.

    row     of the source table, from 1
    group   within which ranks are compared too: a model's size
    series  what the table is split by: the device
    """

    row: int
    label: str
    group: str
    series: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Share by which the prediction is too high (or, below zero, too low)."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Errors:
    """Of a set of points: shares of the measured value (0.05: 5%).

    mean, median, maximum  of the absolute errors
    signed                 mean of the errors with their signs
    rank                   Spearman's correlation over all points; None below ``FEWEST_RANKED`` different measurements
    rank_within            the same within each group that has so many: (group, points, correlation)
    """

    count: int
    mean: float
    median: float
    maximum: float
    signed: float
    rank: float | None
    rank_within: tuple[tuple[str, int, float], ...]


def errors_of(points: Sequence[Point]) -> Errors | None:
    """The errors of some points; None of none."""
    if not points:
        return None
    sizes = [abs(point.error) for point in points]
    return Errors(
        count=len(points),
        mean=statistics.fmean(sizes),
        median=statistics.median(sizes),
        maximum=max(sizes),
        signed=statistics.fmean(point.error for point in points),
        rank=spearman(points),
        rank_within=tuple(_within(points)),
    )


def spearman(points: Sequence[Point]) -> float | None:
    """Correlation of the ranks of measured and predicted, ties sharing their mean rank (Spearman 1904).

    None where fewer than ``FEWEST_RANKED`` measurements differ; 0 where all predictions are the same.
    """
    if len({point.measured for point in points}) < FEWEST_RANKED:
        return None
    measured, predicted = (rankdata([getattr(p, name) for p in points]) for name in ("measured", "predicted"))
    if np.ptp(predicted) == 0:
        return 0.0
    return float(np.corrcoef(measured, predicted)[0, 1])


def _within(points: Sequence[Point]) -> Iterable[tuple[str, int, float]]:
    for group in dict.fromkeys(point.group for point in points):
        members = [point for point in points if point.group == group]
        rank = spearman(members)
        if rank is not None and len(members) < len(points):
            yield group, len(members), rank
