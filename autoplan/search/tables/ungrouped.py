"""A planned model with its tables as they were traced: the inverse of ``table_groups.grouped``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoplan.ir.graph import Block, Model, Node, Parameter, Ref, TensorType, Typed
from autoplan.ir.tables import LOOKUPS, Placed, Table
from autoplan.search.tables.table_groups import BAG, EMBEDDING, fresh


def ungrouped(model: Model) -> Model:
    """The model with each placed table a parameter of its own again, looked up by an operator of its own; as it is
    where none are placed. Names of results and of the user's parameters stay."""
    for index, block in enumerate(model.blocks):
        lookups = next((node for node in block.nodes if node.op == LOOKUPS), None)
        if lookups is not None:
            return ungrouped_in(model, index, lookups)
    return model


def ungrouped_in(model: Model, index: int, lookups: Node) -> Model:
    block = model.blocks[index]
    flat = lookups.operands[0]
    segment = next(each for each in model.segments if each.block == index)
    flat_name = dict(zip((p.name for p in block.parameters), segment.parameters, strict=True))[flat]
    parameter = model.parameter(flat_name)
    _, _, _, sizes, boxes = lookups.args
    assert isinstance(sizes, tuple) and isinstance(boxes, tuple), "as Placed.arguments gave them"
    placed = Placed.of(sizes, boxes, parameter.type.elements)
    tables = dict(sorted(tables_in_boxes(parameter, placed)))
    used, weights = set(block.types()), {}
    for at, each in tables.items():
        name = fresh(each.source.replace(".", "_"), used)
        used.add(name)
        weights[at] = Typed(name, each.type)
    left = tuple(p for p in block.parameters if p.name != flat)
    nodes = tuple(own_lookups(block, lookups, placed, weights))
    names = tuple(each.name for each in tables.values())
    blocks = list(model.blocks)
    blocks[index] = replace(block, parameters=(*weights.values(), *left), nodes=nodes)
    segments = (
        replace(each, parameters=(*names, *(p for p in each.parameters if p != flat_name)))
        if each.block == index else each
        for each in model.segments
    )  # fmt: skip
    kept = tuple(p for p in model.parameters if p.name != flat_name)
    return replace(model, parameters=(*tables.values(), *kept), blocks=tuple(blocks), segments=tuple(segments))


def tables_in_boxes(flat: Parameter, placed: Placed) -> Iterator[tuple[int, Parameter]]:
    """(index of a table, the user's parameter that it is), once for each of its boxes."""
    for box, member in zip(placed.boxes, flat.members, strict=True):
        kind = TensorType(member.shape, flat.type.dtype)
        yield box.table, Parameter(member.source, kind, source=member.source, aliases=member.aliases)


def own_lookups(block: Block, lookups: Node, placed: Placed, weights: Mapping[int, Typed]) -> Iterator[Node]:
    """The block's nodes, where columns of the common result are taken one that looks these up."""
    starts = {start: at for at, start in enumerate(placed.offsets()[:-1])}
    tables, types = placed.tables, block.types()
    indices, scales = refs(lookups.args[1]), iter(refs(lookups.args[2]))
    scaled = {at: next(scales) for at, table in enumerate(tables) if table.scaled}
    several = {
        at for at, table in enumerate(tables) if table.pooling == "none" and len(types[indices[at].name].shape) > 1
    }
    columns: dict[str, int] = {}  # what is taken as columns, to be reshaped: the table that it is of
    for node in block.nodes:
        if node is lookups:
            continue
        start = node.args[2] if node.op == "aten.slice.Tensor" and node.operands == (lookups.name,) else None
        if isinstance(start, int):
            at = starts[start]
            if at in several:
                columns[node.name] = at
                continue
        elif node.op == "aten.reshape.default" and node.operands[0] in columns:
            at = columns[node.operands[0]]
        else:
            yield node
            continue
        yield own_lookup(node, tables[at], Ref(weights[at].name), indices[at], scaled.get(at))


def own_lookup(node: Node, table: Table, weight: Ref, indices: Ref, scales: Ref | None) -> Node:
    if table.pooling == "none":
        padding = () if table.padding < 0 else (table.padding,)
        return replace(node, op=EMBEDDING, args=(weight, indices, *padding), kwargs=())
    return replace(node, op=BAG, args=(weight, indices, scales, table.pooling, table.padding), kwargs=())


def refs(given: object) -> list[Ref]:
    assert isinstance(given, tuple)
    return [each for each in given if isinstance(each, Ref)]
