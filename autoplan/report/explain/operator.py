"""One operator or module: its split, the alternatives, the price of each."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.cost import operators_of
from autoplan.emit.readable import readable_names
from autoplan.emit.source import shape_text, size_text
from autoplan.errors import AutoplanError
from autoplan.ir.graph import Model, Node, Segment
from autoplan.ir.record import PlanRecord
from autoplan.lower.after_search import program_of
from autoplan.report.explain.one_change import local_options
from autoplan.report.table import table
from autoplan.report.words import (
    LEGEND,
    headline,
    seconds_text,
    short_op,
    strategy_text,
    way_text,
    wide_axes,
)

MOST_EXPLAINED = 8  # operators of one module that are priced one by one; a larger module's are listed
NOT_FIRST = (
    "  Alone it would be quicker another way: what is chosen pays in its neighbours, in the memory of weights and\n"
    "  activations, or was pinned."
)


@dataclass(frozen=True)
class Place:
    """An operator as one segment runs it."""

    block: int
    segment: int
    node: Node


def explain_text(record: PlanRecord, name: str) -> str:
    """The operators of that name, or of the module or parameter of that name, each with what else it could do.

    Raises AutoplanError, with the nearest names, where the model has no such one.
    """
    if not isinstance(name, str) or not name:
        cause = "it names no module, parameter or operator"
        raise AutoplanError(repr(name), cause, "give a path as named_modules() has it")
    places = find(record.model, name) or [p for own in graph_names(record, name) for p in find(record.model, own)]
    if not places:
        near = difflib.get_close_matches(name, known_names(record.model), n=4, cutoff=0.4)
        remedy = f"the nearest names are {', '.join(near)}" if near else "give a path as named_modules() has it"
        raise AutoplanError(repr(name), "the model has no module, parameter or operator of that name", remedy)
    nodes = list(dict.fromkeys((p.block, p.node.name) for p in places))
    first = {key: next(p for p in places if (p.block, p.node.name) == key) for key in nodes}
    head = f"{name}, in the plan {headline(record)}"
    priced = [place for place in first.values() if not is_view(record, place)]
    if len(priced) > MOST_EXPLAINED:
        return f"{head}\n\n{listing(record, list(first.values()))}\n"
    parts = [operator_text(record, place) for place in priced or first.values()]
    parts += [LEGEND] if wide_axes(record.chosen.mesh) else []
    return "\n\n".join([head, *parts]) + "\n"


def find(model: Model, name: str) -> list[Place]:
    """Every operator that a name means: a module's path, a parameter's name, an operator's own name."""
    found, weights = [], parameters_of(model, name)
    for index, segment in enumerate(model.segments):
        block = model.blocks[segment.block]
        read = {p.name for p, full in zip(block.parameters, segment.parameters, strict=True) if full in weights}
        for node in block.nodes:
            path = module_path(model, segment, node)
            inside = bool(path) and (path == name or path.startswith(f"{name}."))
            if inside or node.name == name or segment.path == name or read & set(node.operands):
                found.append(Place(segment.block, index, node))
    return found


def parameters_of(model: Model, name: str) -> set[str]:
    """The program's names of one of the user's parameters: a tied one has several, a fused one is several of them."""
    every = {p.name: {p.source, *p.aliases} for p in model.parameters}
    for parameter in model.parameters:
        every[parameter.name] |= {own for m in parameter.members for own in (m.source, *m.aliases)}
    return {own for own, names in every.items() if name == own or name in names}


def graph_names(record: PlanRecord, name: str) -> list[str]:
    """What the graph calls the values that program.py calls so."""
    names = (pair for block in program_of(record).blocks for pair in readable_names(block).items())
    return list(dict.fromkeys(own for own, readable in names if readable == name))


def module_path(model: Model, segment: Segment, node: Node) -> str:
    """The module that runs a node in that segment; a block's nodes name the modules of its first segment."""
    first = next(s for s in model.segments if s.block == segment.block)
    if first.path and (node.module == first.path or node.module.startswith(f"{first.path}.")):
        return segment.path + node.module[len(first.path) :]
    return node.module


def known_names(model: Model) -> list[str]:
    names: dict[str, None] = {}
    for segment in model.segments:
        block = model.blocks[segment.block]
        names |= dict.fromkeys((segment.path, *segment.parameters))
        names |= dict.fromkeys(module_path(model, segment, node) for node in block.nodes)
        names |= dict.fromkeys(node.name for node in block.nodes)
    names |= dict.fromkeys(own for p in model.parameters for own in (p.source, *p.aliases))
    return [name for name in names if name]


def is_view(record: PlanRecord, place: Place) -> bool:
    operators = operators_of(record.model.blocks[place.block], fuses=False)
    return operators[place.node.name].rule.cost == "free"


def listing(record: PlanRecord, places: Sequence[Place]) -> str:
    """The operators of a large module with what was chosen for each."""
    axes = wide_axes(record.chosen.mesh)
    rows = []
    for place in places:
        chosen = dict(record.chosen.blocks[place.block].strategies)[place.node.name]
        cells = [chosen.on(axis).output.placement for axis in axes[:-1]] + [way_text(chosen.on(a)) for a in axes[-1:]]
        rows.append([place.node.name, short_op(place.node.op), place.node.module, *cells])
    return table(["value", "computed by", "in", *axes], rows)


def operator_text(record: PlanRecord, place: Place) -> str:
    """One operator: what it computes, how it is split, and each other way with its price."""
    block, node = record.model.blocks[place.block], place.node
    types = block.types()
    operands = ", ".join(f"{name} {shape_text(types[name].shape)}" for name in node.operands)
    chosen = dict(record.chosen.blocks[place.block].strategies)[node.name]
    operator = operators_of(block, fuses=record.training.compile)[node.name]
    times = sum(segment.block == place.block for segment in record.model.segments)
    alike = f", of which the model has {times} that run alike" if times > 1 else ""
    lines = [
        f"{node.name} = {short_op(node.op)}({operands}) -> {shape_text(node.type.shape)}",
        f"  in {block.name}{alike}",
        f"  rule    {operator.rule.spec}",
        f"  chosen  {strategy_text(chosen, record.chosen.mesh) or 'whole, on one device'}",
    ]
    return "\n".join([*lines, *(axis_text(record, place, axis) for axis in explained_axes(record))])


def explained_axes(record: PlanRecord) -> tuple[str, ...]:
    """The axes whose ways are compared: those that were searched; the batch's where there is no other."""
    axes = wide_axes(record.chosen.mesh)
    return tuple(axis for axis in axes if axis != "dp") or axes


def axis_text(record: PlanRecord, place: Place, axis: str) -> str:
    """The ways on one axis with their prices, the cheapest first."""
    options = local_options(record, place.block, place.node, axis)
    if len(options) == 1:
        return f"  There is no other way on {axis}."
    rows = []
    for option in options:
        times = [option.compute_s, option.moves_s, option.stored_s, option.total_s]
        texts = ["no way" if seconds is None else seconds_text(seconds) for seconds in times]
        mark = "chosen" if option.chosen else ""
        weights = size_text(option.parameter_bytes) if option.parameter_bytes else "-"
        rows.append([*texts, weights, mark, way_text(option.strategy.on(axis))])
    header = ["compute", "redistribute", "update", "together", "weights", "", "operands -> result"]
    title = f"  On {axis}, each way's time in one microbatch, forward and backward, all else left as chosen:"
    text = f"{title}\n{table(header, rows, right=range(5), indent=4)}"
    return text if options[0].chosen else f"{text}\n{NOT_FIRST}"
