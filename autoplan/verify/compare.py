"""Two training runs compared: loss, gradients, parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]

FLOOR = 1e-6
"""A gradient whose norm is below this share of the global norm is compared with that share: a key's bias has the exact
gradient zero under softmax, and what is computed for it is rounding alone."""


@dataclass(frozen=True)
class Run:
    """What a training run left behind: losses of all steps, gradients of the first, parameters after the last."""

    losses: tuple[float, ...]
    gradients: Tensors
    parameters: Tensors


@dataclass(frozen=True)
class Worst:
    """The largest relative error and where it was."""

    error: float
    name: str


@dataclass(frozen=True)
class Tolerance:
    """Bounds on relative errors."""

    loss: float
    gradients: float
    parameters: float


FLOAT64 = Tolerance(loss=1e-10, gradients=1e-10, parameters=1e-9)
FLOAT32 = Tolerance(loss=1e-6, gradients=1e-5, parameters=math.inf)


def loss_error(run: Run, reference: Run) -> Worst:
    """Of the first step's loss; the later ones depend on the optimizer too, and are covered by the parameters."""
    error = abs(run.losses[0] - reference.losses[0]) / max(abs(reference.losses[0]), 1e-30)
    return Worst(error if math.isfinite(error) else math.inf, "loss")


def gradient_error(run: Run, reference: Run) -> Worst:
    """The largest ‖g − g'‖ / ‖g'‖ over the parameters, in the 2-norm."""
    norms = [float(g.double().norm()) for g in reference.gradients.values()]
    floor = FLOOR * math.hypot(*norms) if norms else 0.0
    return tensor_error(run.gradients, reference.gradients, floor)


def parameter_error(run: Run, reference: Run) -> Worst:
    """The largest ‖p − p'‖ / ‖p'‖ over the parameters and buffers after the last step."""
    return tensor_error(run.parameters, reference.parameters, 1e-30)


def tensor_error(given: Tensors, expected: Tensors, floor: float) -> Worst:
    worst = Worst(0.0, "")
    for name, reference in expected.items():
        if name not in given or given[name].shape != reference.shape:
            return Worst(math.inf, name)
        difference = float((given[name].double() - reference.double()).norm())
        scale = max(float(reference.double().norm()), floor, 1e-300)
        error = difference / scale
        if not error <= worst.error:
            worst = Worst(error if math.isfinite(error) else math.inf, name)
    return worst


__all__ = ["FLOAT32", "FLOAT64", "Run", "Tolerance", "Worst", "gradient_error", "loss_error", "parameter_error"]
