"""bf16-mixed: how far a run is from float32, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]

FURTHER = 1.2
"""Times the distance of one device in bf16-mixed that a sharded program in bf16-mixed may be from float32."""


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
    gradients  ‖g − g'‖ / ‖g'‖, with a component for each element of each parameter's gradient on each batch
    """

    loss: float
    gradients: float


def distance(found: Steps, wide: Steps) -> Distance:
    """How far steps are from those in float32; infinite where a gradient is missing, or anything isn't a number."""
    losses = relative(
        [torch.tensor(found.losses, dtype=torch.float64)], [torch.tensor(wide.losses, dtype=torch.float64)]
    )
    ours, theirs = [], []
    for given, expected in zip(found.gradients, wide.gradients, strict=True):
        if given.keys() != expected.keys():
            return Distance(losses, math.inf)
        ours += [given[name] for name in expected]
        theirs += list(expected.values())
    return Distance(losses, relative(ours, theirs))


def relative(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    difference = math.hypot(*(float((a.double() - b.double()).norm()) for a, b in zip(found, expected, strict=True)))
    error = difference / math.hypot(*(float(b.double().norm()) for b in expected))
    return error if math.isfinite(error) else math.inf
