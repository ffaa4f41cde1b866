"""A redistribution as the planner wrote it, executed: what an exported program spells out as calls, from data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from autoplan.ir.typed import Collective
from autoplan.runtime.collectives import typed
from autoplan.runtime.collectives.mesh_axes import MeshAxis


def groups_of(steps: Iterable[Collective]) -> tuple[tuple[str, ...], ...]:
    """The groups that these collectives run over, for ``mesh_axes``; in the order of their first use."""
    return tuple(dict.fromkeys(step.axes for step in steps))


def run(steps: Iterable[Collective], x: Tensor, axes: Mapping[str, MeshAxis]) -> Tensor:
    """This rank's part of a tensor after these collectives; gradients pass back through them.

    x     its part before
    axes  by name, every group that is used among them (``mesh_axes(…, groups=groups_of(steps))``)
    """
    for step in steps:
        x = apply(step, x, axes[step.axis])
    return x


def apply(step: Collective, x: Tensor, axis: MeshAxis) -> Tensor:
    """One collective: the function of autoplan.runtime.collectives.typed that it names."""
    function: Callable[..., Tensor] = getattr(typed, step.op)
    if step.op == "permute":
        return function(x, step.spec, axis)
    if step.spec:
        return function(x, step.shape, step.spec, axis)
    return function(x, *step.dims, axis)
