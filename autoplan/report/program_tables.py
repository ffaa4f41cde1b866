"""Each distinct block's parameters and operators with their layouts, in PyTorch's names."""

from autoplan.emit.source import path_text, shape_text, size_text
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh, zero_axes
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Collective, Compute, Lowered, Move, TypedValue
from autoplan.lower.after_search import program_of
from autoplan.report.table import table
from autoplan.report.words import LEGEND, short_op, way_text, wide_axes


def blocks_section(record: PlanRecord) -> str:
    """What the placements mean, then a part for every distinct block, in the order of their first use."""
    lowered = program_of(record)
    used = dict.fromkeys(segment.block for segment in lowered.segments)
    legend = [LEGEND] if wide_axes(lowered.mesh) else []
    return "\n\n".join([*legend, *(block_text(record, lowered, index) for index in used)])


def block_text(record: PlanRecord, lowered: Lowered, index: int) -> str:
    """One block: what enters, its parameters as used, its operators and redistributions.

    Under an axis stands the state on it: for operators on the last one how each operand comes and the result goes.
    """
    block, mesh = lowered.blocks[index], lowered.mesh
    axes = wide_axes(mesh)
    entering = (*block.inputs, *block.externals, *block.buffers)
    parts = [f"Block {block.name}: {path_text(lowered.segments, index) or 'the root'}"]
    if entering:
        rows = [[v.name, shape_text(v.local_shape), *states(v.layout, mesh)] for v in entering]
        parts.append(table(["enters", "on one rank", *axes], rows))
    if block.parameters:
        parts.append(parameters_table(record, lowered, index))
    parts.append(operators_table(lowered, index))
    return "\n".join(parts)


def states(layout: Layout, mesh: Mesh) -> list[str]:
    """The state on each axis of more than one rank."""
    return [layout.state(axis).placement for axis in wide_axes(mesh)]


def parameters_table(record: PlanRecord, lowered: Lowered, index: int) -> str:
    """How each parameter lies on the tensor axes, and where its gradient is summed."""
    segment = next(s for s in lowered.segments if s.block == index)
    stored = {p.name: p for p in lowered.parameters}
    zero = record.chosen.parallelism.zero
    rows = []
    for value, name in zip(lowered.blocks[index].parameters, segment.parameters, strict=True):
        keeps = stored[name]
        shapes = f"{shape_text(value.type.shape)} -> {shape_text(value.local_shape)}"
        reduced = ", ".join(keeps.reduce_axes) or "-"
        rows.append([value.name, shapes, *states(keeps.layout, lowered.mesh), reduced])
    split = record.chosen.parallelism.folding.axes
    over = " ".join(axis for axis in zero_axes(split) if lowered.mesh.size(axis) > 1)
    replicas = record.chosen.parallelism.dp_replicate or 1
    shards = f"shards {over} of these" + (f", in {replicas} replicas" if replicas > 1 else "")
    note = f"gradient summed over (ZeRO-{zero}: {shards})" if zero and over else "gradient summed over"
    return table(["parameter", "whole -> on one rank", *wide_axes(lowered.mesh), note], rows)


def operators_table(lowered: Lowered, index: int) -> str:
    block, mesh = lowered.blocks[index], lowered.mesh
    entering = (*block.inputs, *block.externals, *block.parameters, *block.buffers)
    found: dict[str, TypedValue] = {v.name: v for v in entering}
    rows = []
    for statement in block.body:
        if isinstance(statement, Compute):
            rows.append(compute_row(statement, mesh))
        else:
            rows.append(move_row(statement, found, mesh))
        found[statement.value.name] = statement.value
    return table(["value", "computed by", "on one rank", *wide_axes(mesh)], rows)


def compute_row(compute: Compute, mesh: Mesh) -> list[str]:
    """On the last axis how the operands come and the result goes, on the others the result's state."""
    value, axes = compute.value, wide_axes(mesh)
    cells = states(value.layout, mesh)
    if axes:
        cells[-1] = way_text(dict(compute.strategies)[axes[-1]])
    return [value.name, short_op(compute.op), shape_text(value.local_shape), *cells]


def move_row(move: Move, found: dict[str, TypedValue], mesh: Mesh) -> list[str]:
    """A redistribution: what crosses the links, and the state before and after on each axis that changes."""
    before, after = (states(layout, mesh) for layout in (found[move.source].layout, move.value.layout))
    cells = [b if a == b else f"{b} -> {a}" for b, a in zip(before, after, strict=True)]
    crossing = ", ".join(text for step in move.collectives if (text := step_text(step)))
    if cells and crossing:
        cells[-1] += f"; {crossing}"
    return [move.value.name, f"moving {move.source}", shape_text(move.value.local_shape), *cells]


def step_text(step: Collective) -> str:
    """``all-gather over tp 128 MiB, backward reduce-scatter 128 MiB``."""
    forward = f"{step.forward} over {step.axis} {size_text(step.forward_bytes)}" if step.forward else ""
    backward = f"backward {step.backward} over {step.axis} {size_text(step.backward_bytes)}" if step.backward else ""
    return ", ".join(part for part in (forward, backward) if part)
