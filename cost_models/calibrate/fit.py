"""Figures under which predictions meet measurements: least squares over the logarithm of predicted over measured.

Ratios weigh a point of a microsecond as much as one of a second, unless a fit is told to count the longer for more.
Residuals beyond a fifth count less than squared, so that a few disturbed points don't move the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy.optimize import least_squares

Key = TypeVar("Key")

_OUTLIER = 0.2
_PULL = 0.02     # of the guess, on a figure's logarithm: settles what the measurements leave open
_REACH = 1e7     # how far from its guess, as a factor, a figure is sought


def fit(
    guess: Mapping[Key, float],
    predict: Callable[[Mapping[Key, float]], Sequence[float]],
    measured: Sequence[float],
    by_time: bool = False,
) -> dict[Key, float]:
    """The positive figures, starting at ``guess``, under which ``predict`` gives about the measured seconds.

    by_time  a point's square counts by its seconds, for a step's time is the sum of its operators'

    A figure on which no prediction depends stays at its guess.
    """
    keys = tuple(guess)
    at = np.log([guess[key] for key in keys])
    seconds = np.log(np.asarray(measured, dtype=float))
    weights = np.sqrt(np.asarray(measured) / np.mean(measured)) if by_time else 1.0

    def residuals(logs: np.ndarray) -> np.ndarray:
        figures = dict(zip(keys, np.exp(logs).tolist(), strict=True))
        return np.concatenate([weights * (np.log(predict(figures)) - seconds), _PULL * (logs - at)])

    reach = math.log(_REACH)
    found = least_squares(
        residuals, at, bounds=(at - reach, at + reach), loss="soft_l1", f_scale=_OUTLIER, x_scale="jac"
    )
    return dict(zip(keys, np.exp(found.x).tolist(), strict=True))


def misfit(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """What ``fit`` makes small, for comparing fits of different forms."""
    ratios = np.log(np.asarray(predicted)) - np.log(np.asarray(measured))
    return float(np.sum(2 * _OUTLIER**2 * (np.sqrt(1 + (ratios / _OUTLIER) ** 2) - 1)))
