"""bf16-mixed: how far a run is from float32, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]

FURTHER = 1.2
"""Times the distance of one device in bf16-mixed that a sharded program in bf16-mixed may be from float32."""

SURE = 2.0
"""Standard errors by which the ratio of two distances of losses has to be above ``FURTHER`` to be told from chance: a
loss is one number a batch, and its rounding error a random one."""


@dataclass(frozen=True)
class Steps:
    """The first steps that a model takes on several batches, each from the same weights: all losses, and the gradients
    of the first few."""

    losses: tuple[float, ...]
    gradients: tuple[Tensors, ...]


@dataclass(frozen=True)
class Distance:
    """Relative distances from the float32 model on one device, over the batches at once.

    loss       ‖l − l'‖ / ‖l'‖, with a component for each batch
    losses     |l − l'| of each batch
    gradients  ‖g − g'‖ / ‖g'‖, with a component for each element of each parameter's gradient on each batch
    """

    loss: float
    gradients: float
    losses: tuple[float, ...] = ()


def standard_error(ours: Distance, theirs: Distance) -> float:
    """Of the logarithm of the ratio of two distances of losses, by the jackknife over batches (Efron 1982); 0 where
    there are too few."""
    squares = [(a * a, b * b) for a, b in zip(ours.losses, theirs.losses, strict=True)]
    whole = [sum(column) for column in zip(*squares, strict=True)]
    left = [(whole[0] - a, whole[1] - b) for a, b in squares]
    if len(left) < 3 or min(min(pair) for pair in left) <= 0:
        return 0.0
    logs = [math.log(a / b) / 2 for a, b in left]
    mean = sum(logs) / len(logs)
    return math.sqrt((len(logs) - 1) / len(logs) * sum((log - mean) ** 2 for log in logs))


def distance(found: Steps, wide: Steps) -> Distance:
    """How far steps are from those in float32; infinite where a gradient is missing, or anything isn't a number."""
    losses = relative(
        [torch.tensor(found.losses, dtype=torch.float64)], [torch.tensor(wide.losses, dtype=torch.float64)]
    )
    each = tuple(abs(a - b) for a, b in zip(found.losses, wide.losses, strict=True))
    ours, theirs = [], []
    for given, expected in zip(found.gradients, wide.gradients, strict=True):
        if not expected.keys() <= given.keys():  # a tied parameter's gradient comes under each of its names
            return Distance(losses, math.inf, each)
        ours += [given[name] for name in expected]
        theirs += list(expected.values())
    return Distance(losses, relative(ours, theirs), each)


def relative(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    difference = math.hypot(*(float((a.double() - b.double()).norm()) for a, b in zip(found, expected, strict=True)))
    error = difference / math.hypot(*(float(b.double().norm()) for b in expected))
    return error if math.isfinite(error) else math.inf
