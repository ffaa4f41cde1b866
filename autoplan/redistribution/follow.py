"""The layout after one written step, for the type checker."""

from dataclasses import replace

from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.apply import Tensor, held_elements, permutable, target_of, write
from autoplan.redistribution.exchange.messages import parse_spec
from autoplan.redistribution.factors import expand, factored_axes, simplify, split
from autoplan.redistribution.space.edges import even
from autoplan.redistribution.steps import EXCHANGES
from autoplan.redistribution.written import write_exchange


def follow(
    layout: Layout, step: Collective, type: TensorType, mesh: Mesh, *, carries_gradient: bool
) -> tuple[Layout, Collective]:
    """Where one collective leads from a layout, and that collective as it would be written there, with its kinds and
    sizes; ValueError, saying why, where it can't be taken."""
    named = [axis for dims in (parse_spec(step.spec) if step.spec else ()) for axes in dims for axis in axes]
    apart = factored_axes((*named, *step.axes, *layout.axes))
    here = expand(layout, mesh, apart)
    there, found = target_of(here, replace(step, axes=split(step.axes, mesh, apart)), mesh, carries_gradient)
    itemsize = DTYPE_BYTES[type.dtype]
    if step.op in EXCHANGES:
        tensor = Tensor(type.shape, itemsize, carries_gradient)
        if step.op == "permute" and not permutable(here, there, type.shape, mesh):
            raise ValueError(f"permute {step.spec!r}: parts of {type.shape} differ in size, or in number")
        written = write_exchange(here, there, step.op, tensor, mesh)
    else:
        for dim, layout in ((dim, layout) for dim in step.dims for layout in (here, there)):
            if not even(type.shape[dim], layout.dims[dim], mesh):
                raise ValueError(f"{step.op}: dim {dim} of {type.shape} doesn't divide by {' '.join(layout.dims[dim])}")
        held = tuple(held_elements(x, type.shape, mesh) * itemsize for x in (here, there))
        written = write(found, step.axes, step.dims, (held[0], held[1]), carries_gradient)
    return simplify(there, mesh, carries_gradient, type.shape), replace(written, chunks=step.chunks)
