"""Two training runs compared: loss, gradients, parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]

ZERO = 1e-12
"""A gradient whose norm in float64 is below this share of the global norm is zero, and what is computed for it is
rounding alone (a key's bias shifts all scores of a row alike, which softmax doesn't see). Its error is measured
against the global norm, for there is nothing else to measure it against."""


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


def loss_error(run: Run, reference: Run) -> Worst:
    """Of the first step's loss; the later ones depend on the optimizer too, and are covered by the parameters."""
    error = abs(run.losses[0] - reference.losses[0]) / max(abs(reference.losses[0]), 1e-30)
    return Worst(error if math.isfinite(error) else math.inf, "loss")


def zero_gradients(exact: Run) -> frozenset[str]:
    """Names of the parameters whose gradient, in a run in float64, is zero but for rounding."""
    limit = ZERO * global_norm(exact.gradients)
    return frozenset(name for name, g in exact.gradients.items() if float(g.norm()) <= limit)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def global_norm(tensors: Tensors) -> float:
    return math.hypot(*(float(wide(t).norm()) for t in tensors.values()))


def gradient_error(run: Run, reference: Run, zero: frozenset[str]) -> Worst:
    """The largest ‖g − g'‖ / ‖g'‖ over the parameters, in the 2-norm.

    zero  names whose error is measured against the global norm
    """
    whole = global_norm(reference.gradients)
    return tensor_error(run.gradients, reference.gradients, {name: whole for name in zero})


def parameter_error(run: Run, reference: Run, zero: frozenset[str]) -> Worst:
    """The largest ‖p − p'‖ / ‖p'‖ over the parameters and buffers after the last step.

    zero  names whose error is measured against the global norm: where the gradient is rounding, Adam's step is, too

    So are those that are themselves nothing but rounding (``ZERO``): the running mean of what was centred just before.
    """
    floating = {name: t for name, t in reference.parameters.items() if t.is_floating_point() or t.is_complex()}
    whole = global_norm(floating)
    rounding = {name for name, t in floating.items() if float(t.norm()) <= ZERO * whole}
    return tensor_error(run.parameters, reference.parameters, {name: whole for name in zero | rounding})


def tensor_error(given: Tensors, expected: Tensors, scales: Mapping[str, float]) -> Worst:
    """The worst relative error; ``scales`` gives what some are measured against instead of their own norm."""
    worst = Worst(0.0, "")
    for name, reference in expected.items():
        if name not in given or given[name].shape != reference.shape:
            return Worst(math.inf, name)
        difference = float((wide(given[name]) - wide(reference)).norm())
        scale = scales.get(name, float(wide(reference).norm()))
        error = 0.0 if difference == 0 else difference / max(scale, 1e-300)
        if not error <= worst.error:
            worst = Worst(error if math.isfinite(error) else math.inf, name)
    return worst

