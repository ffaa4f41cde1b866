"""The one step between two layouts, where there is one: what a problem over several axes has as its arcs.

The planner finds the cheapest of all ways between two layouts, over other axes and prime factors too; a problem with
thousands of arcs composes its ways itself, of single steps.
"""

from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import Layout, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.apply import Tensor, changed, exchange_op, held_elements, write
from autoplan.redistribution.steps import find_step, neutral
from autoplan.redistribution.written import write_exchange


def single_step(
    kind: TensorType, source: Layout, target: Layout, carries: bool, mesh: Mesh
) -> tuple[Collective, ...] | None:
    """The step, none where nothing has to be done; None where no single one leads there.

    Axes that change are in one state before and in one after. Where they are not the innermost of a dim that they leave
    or enter, its parts lie apart, and an exchange with the axes inside them gathers or scatters them.
    """
    moved = changes(source, target, carries, mesh)
    if not moved:
        return ()
    axes = tuple(axis for axis, _, _ in moved)
    if len({(here, there) for _, here, there in moved}) > 1 or any(mesh.axis(axis).virtual for axis in axes):
        return None
    _, here, there = moved[0]
    step = find_step(here, there, carries)
    innermost = here.kind != "S" or source.dims[here.dim][-len(axes) :] == axes
    itemsize = DTYPE_BYTES[kind.dtype]
    if step is None or not innermost or changed(source, axes, there, mesh) != target:
        op = exchange_op(dict(source.rest), dict(target.rest))
        return (write_exchange(source, target, op, Tensor(kind.shape, itemsize, carries), mesh),) if op else None
    held = tuple(held_elements(layout, kind.shape, mesh) * itemsize for layout in (source, target))
    dims = tuple(state.dim for state in (here, there) if state.kind == "S")
    return (write(step, axes, dims, (held[0], held[1]), carries),)


def changes(source: Layout, target: Layout, carries: bool, mesh: Mesh) -> list[tuple[str, State, State]]:
    """(axis, state before, state after) of every axis of several members that changes."""
    before, after = source.states(), target.states()
    pairs = [(axis.name, before[axis.name], after[axis.name]) for axis in mesh.axes if axis.size > 1]
    neutrals = [(axis, neutral(here, carries), neutral(there, carries)) for axis, here, there in pairs]
    return [(axis, here, there) for axis, here, there in neutrals if here != there]
