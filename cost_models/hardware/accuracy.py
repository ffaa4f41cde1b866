"""How far published steps were from predicted ones, as a device's profile says it."""

from __future__ import annotations

from cost_models.figures import Figures

ACCURACY = ("accuracy",)  # the table that only devices have on which published steps were met
UNVALIDATED = (0.96, 1.14)
"""Measured over predicted, from and to, on a device that no published step was met on: the widest of the profiles that
come with the package. It says nothing of how well such a device's own figures are known."""


def read_accuracy(figures: Figures) -> tuple[float, float] | None:
    """(low, high) of measured over predicted step time: the 10th and 90th percentile of published rows, and 1 between
    them. None where the profile has none."""
    if not figures.has(*ACCURACY):
        return None
    low, high = (figures.positive(*ACCURACY, name, measures="count") for name in ("low", "high"))
    return low, high
