"""Each distinct block's parameters and operators with their layouts, in PyTorch's names."""

from __future__ import annotations

from autoplan.emit.program import block_place
from autoplan.emit.source import collective_comment
from autoplan.graph import Node
from autoplan.mesh import Mesh
from autoplan.record import PlanRecord
from autoplan.report.table import table
from autoplan.report.words import layout_text, shape_text, short_op, strategy_text
from autoplan.typed import Compute, Lowered, LoweredBlock, Move, TypedValue


def blocks_section(record: PlanRecord) -> str:
    """A part for every distinct block, in the order of their first use."""
    lowered = record.lowered()
    used = dict.fromkeys(segment.block for segment in lowered.segments)
    return "\n\n".join(block_text(record, lowered, index) for index in used)


def block_text(record: PlanRecord, lowered: Lowered, index: int) -> str:
    """One block: what enters, its parameters as used, its operators and redistributions."""
    block = lowered.blocks[index]
    parts = [f"{block.name}: {block_place(lowered, index)}"]
    if block.inputs:
        parts.append(table(["enters", "on one rank", "layout"], [value_row(v, lowered.mesh) for v in block.inputs]))
    if block.parameters:
        parts.append(parameters_table(record, lowered, block, index))
    rows = [statement_row(s, lowered.mesh, record.model.segments, index) for s in block.body]
    parts.append(table(["operator", "runs", "result on one rank", "operands -> result"], rows))
    return "\n".join(parts)


def value_row(value: TypedValue, mesh: Mesh) -> list[str]:
    return [value.name, shape_text(value.local_shape), layout_text(value.layout, mesh) or "whole"]


def parameters_table(record: PlanRecord, lowered: Lowered, block: LoweredBlock, index: int) -> str:
    """How each parameter lies on the tensor axes, and where its gradient is summed."""
    segment = next(s for s in lowered.segments if s.block == index)
    stored = {p.name: p for p in lowered.parameters}
    zero = record.chosen.parallelism.zero
    rows = []
    for value, name in zip(block.parameters, segment.parameters, strict=True):
        reduced = ", ".join(stored[name].reduce_axes) or "-"
        shapes = f"{shape_text(value.type.shape)} -> {shape_text(value.local_shape)}"
        rows.append([value.name, shapes, reduced, layout_text(stored[name].layout, lowered.mesh) or "whole"])
    sharded = f"stored (ZeRO-{zero} splits it over dp further)" if zero else "stored"
    return table(["parameter", "whole -> on one rank", "gradient summed over", sharded], rows)


def statement_row(statement: Compute | Move, mesh: Mesh, segments: object, index: int) -> list[str]:
    value = statement.value
    shape = shape_text(value.local_shape)
    if isinstance(statement, Compute):
        return [value.name, short_op(statement.op), shape, strategy_text(statement.strategies, mesh) or "whole"]
    return [value.name, f"from {statement.source}", shape, move_text(statement, mesh)]


def move_text(move: Move, mesh: Mesh) -> str:
    """``tp: forward: all-gather 128 MiB, backward: reduce-scatter 128 MiB; gives tp: Replicate``."""
    steps = [f"over {c.axis}, {collective_comment(c)}" for c in move.collectives if collective_comment(c)]
    to = layout_text(move.value.layout, mesh)
    return f"{'; '.join(steps) or 'nothing moves'}; gives {to or 'whole'}"


def node_row(node: Node) -> list[str]:
    return [node.name, short_op(node.op), shape_text(node.type.shape)]
