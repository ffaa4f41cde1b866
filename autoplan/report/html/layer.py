"""A block as a picture: its operators in order, coloured by how they are split, and what crosses the links."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from autoplan.emit.source import path_text, shape_text, size_text
from autoplan.ir.choice import PricedCollective
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Compute, LoweredBlock, Move, Statement, TypedValue
from autoplan.lower.after_search import program_of
from autoplan.report.html.chart import figure, folded, legend, text
from autoplan.report.words import seconds_text, short_op, wide_axes

ROW, LINE, GUTTER = 26, 18, 56  # pixels: a row, each further line of one, and the edges beside them
DIMS = 4  # that have a colour of their own
BACKWARD = " (backward)"


def layers_section(record: PlanRecord) -> str:
    """Every distinct block, the one that stands most often unfolded."""
    lowered = program_of(record)
    uses = Counter(segment.block for segment in lowered.segments)
    priced: dict[str, list[PricedCollective]] = {}
    for one in record.chosen.predicted.collectives:
        priced.setdefault(one.where, []).append(one)
    most = max(uses, key=lambda index: uses[index])
    parts = []
    for index in dict.fromkeys(segment.block for segment in lowered.segments):
        block = lowered.blocks[index]
        title = f"{block.name}: {path_text(lowered.segments, index) or 'the root'}, {len(block.body)} steps"
        parts.append(folded(title, picture(block, lowered.mesh, priced), shown=index == most))
    axes = wide_axes(lowered.mesh)
    note = (
        f"Each row is an operator with the shape that one rank holds, coloured by its split over {axes[-1]}; lines on "
        "the left lead from what an operator reads. A marked row is a collective: bytes and time of a run on a device."
        if axes
        else "Each row is an operator with its shape; one device holds all."
    )
    colours = [(f"split-{dim}", f"split along dim {dim}") for dim in range(DIMS)]
    keys = [*colours, ("split-whole", "whole on each rank"), ("split-partial", "a summand"), ("moved", "collective")]
    return figure("Layers", (legend(keys) if axes else "") + "".join(parts), note, "layers")


def picture(block: LoweredBlock, mesh: Mesh, priced: Mapping[str, Sequence[PricedCollective]]) -> str:
    """The rows of a block, with its edges in one drawing beside them."""
    entering = [*block.inputs, *block.externals]
    rows, centres, y = [], {}, 0
    for value in entering:
        rows.append(entry_row(value, mesh))
        centres[value.name] = y + ROW / 2
        y += ROW
    edges = []
    for statement in block.body:
        name = statement.value.name
        crossing = collectives_of(block, statement, priced)
        if isinstance(statement, Move):
            rows.append(move_row(statement, crossing))
        else:
            rows.append(compute_row(statement, mesh, crossing))
        height = height_of(statement, crossing)
        centres[name] = y + height / 2
        for read in dict.fromkeys(statement.reads):
            if read in centres:
                edges.append((centres[read], centres[name]))
        y += height
    drawing = f'<svg class="edges" width="{GUTTER}" height="{y}" aria-hidden="true">{"".join(map(edge, edges))}</svg>'
    return f'<div class="block">{drawing}<ol>{"".join(rows)}</ol></div>'


def height_of(statement: Statement, crossing: Sequence[PricedCollective]) -> int:
    """Of a row: a line for an operator, and one for each collective."""
    return ROW + LINE * max(0, len(crossing) - isinstance(statement, Move))


def edge(ends: tuple[float, float]) -> str:
    """A curve from a value to what reads it, the farther out the longer it is."""
    begin, end = ends
    out = GUTTER - min(GUTTER - 4, 8 + 9 * math.log2(max((end - begin) / ROW, 1)))
    return f'<path d="M{GUTTER} {begin:g}C{out:.1f} {begin:g} {out:.1f} {end:g} {GUTTER} {end:g}"/>'


def collectives_of(
    block: LoweredBlock, statement: Statement, priced: Mapping[str, Sequence[PricedCollective]]
) -> list[PricedCollective]:
    """The priced collectives of a redistribution, or of those inside an operator."""
    if isinstance(statement, Compute) and not statement.body:
        return []
    where = f"{block.name} {statement.source if isinstance(statement, Move) else statement.value.name}"
    found = [*priced.get(where, ()), *priced.get(where + BACKWARD, ())]
    moved = {(kind, step.axis, size) for other in block.body if isinstance(other, Move) for step in other.collectives
             if f"{block.name} {other.source}" == where
             for kind, size in ((step.forward, step.forward_bytes), (step.backward, step.backward_bytes))}  # fmt: skip
    if isinstance(statement, Compute):
        return [c for c in found if (c.kind, c.axis, c.bytes) not in moved]
    own = {(kind, step.axis, size) for step in statement.collectives
           for kind, size in ((step.forward, step.forward_bytes), (step.backward, step.backward_bytes))}  # fmt: skip
    return list({(c.where, c.kind, c.axis, c.bytes): c for c in found if (c.kind, c.axis, c.bytes) in own}.values())


def split_class(value: TypedValue, mesh: Mesh) -> str:
    """By the state on the innermost axis of more than one rank."""
    axes = wide_axes(mesh)
    if not axes:
        return "split-whole"
    state = value.layout.state(axes[-1])
    if state.kind == "S":
        return f"split-{state.dim % DIMS}"
    return "split-partial" if state.kind == "P" else "split-whole"


def states_text(value: TypedValue, mesh: Mesh) -> str:
    return ", ".join(f"{axis} {value.layout.state(axis).placement}" for axis in wide_axes(mesh))


def entry_row(value: TypedValue, mesh: Mesh) -> str:
    return line(f"{split_class(value, mesh)} enters", value.name, "enters", shape_text(value.local_shape),
                states_text(value, mesh))  # fmt: skip


def compute_row(compute: Compute, mesh: Mesh, crossing: Sequence[PricedCollective]) -> str:
    value = compute.value
    said = (short_op(compute.op), shape_text(value.local_shape), states_text(value, mesh))
    return line(split_class(value, mesh), value.name, *said, crossing)


def move_row(move: Move, crossing: Sequence[PricedCollective]) -> str:
    """A redistribution, marked where it crosses the links."""
    if crossing:
        return line("moved", "", "", "", "", crossing)
    steps = ", ".join(step.op for step in move.collectives) or "relabelled"
    return line("local", move.value.name, steps, shape_text(move.value.local_shape), "")


def line(css: str, name: str, op: str, shape: str, states: str, crossing: Sequence[PricedCollective] = ()) -> str:
    said = "".join(crossing_text(c) for c in crossing)
    inside = f'<span class="links">{said}</span>' if crossing else ""
    words = f"<b>{text(name)}</b> <i>{text(op)}</i> <code>{text(shape)}</code> <small>{text(states)}</small>"
    words = f"<span>{words}</span>" if name else ""
    full = " ".join(part for part in (name, op, shape, states) if part)
    lines = bool(words) + len(crossing)
    tall = f' style="height:{ROW + LINE * (lines - 1)}px"' if lines > 1 else ""
    css = f"{css} tall" if crossing else css
    return f'<li class="{css}"{tall} title="{text(full)}">{words}{inside}</li>'


def crossing_text(c: PricedCollective) -> str:
    """``all-gather tp 128 MiB, 316 µs``, of the backward where it is one."""
    side = "backward: " if c.where.endswith(BACKWARD) else ""
    each_s = c.seconds / c.count if c.count else 0.0
    label = f"{side}{c.kind} {c.axis} {size_text(c.bytes)}, {seconds_text(each_s)}"
    return f'<span data-bytes="{c.bytes}" data-seconds="{each_s!r}">{text(label)}</span>'
