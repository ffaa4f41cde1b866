"""Where one written step leads, for whoever checks a program that he hasn't planned."""

from __future__ import annotations

from dataclasses import replace

from autoplan.graph import DTYPE_BYTES, TensorType
from autoplan.layout import Layout
from autoplan.mesh import Mesh
from autoplan.redistribute.apply import Tensor, held_elements, target_of, write
from autoplan.redistribute.direct import write_exchange
from autoplan.redistribute.factors import expand, simplify, split
from autoplan.redistribute.steps import EXCHANGES
from autoplan.typed import Collective


def follow(
    layout: Layout, step: Collective, type: TensorType, mesh: Mesh, *, carries_gradient: bool
) -> tuple[Layout, Collective]:
    """Where one collective leads from a layout, and that collective as it would be written there, with its kinds and
    sizes; ValueError, saying why, where it can't be taken."""
    factored = any("." in axis for axis in (*step.axes, *layout.axes)) or "." in step.spec
    here = expand(layout, mesh) if factored else layout
    there, found = target_of(here, refactored(step, mesh) if factored else step, mesh, carries_gradient)
    itemsize = DTYPE_BYTES[type.dtype]
    if step.op in EXCHANGES:
        tensor = Tensor(type.shape, itemsize, carries_gradient)
        written = write_exchange(here, there, step.op, tensor, mesh)
    else:
        held = tuple(held_elements(x, type.shape, mesh) * itemsize for x in (here, there))
        written = write(found, step.axes, step.dims, (held[0], held[1]), carries_gradient)
    return simplify(there, mesh, carries_gradient), written


def refactored(step: Collective, mesh: Mesh) -> Collective:
    """The step on prime factors; specs name them as they are."""
    return replace(step, axes=split(step.axes, mesh))
