"""The tables of a traced model, and the model with some of them in one flat parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import Block, Member, Model, Node, Parameter, Ref, Segment, TensorType, Typed, batch_rows
from autoplan.ir.tables import LOOKUPS, Placed, Table

FLAT = "tables"
BAG, EMBEDDING = "autoplan.embedding_bag", "aten.embedding.default"


@dataclass(frozen=True)
class Found:
    """A table that is looked up once, by indices of the batch.

    block      index into Model.blocks
    node       what looks it up
    parameter  the model's name of it
    indices, scales  the block's names of what the batch says; scales: "" for none
    """

    block: int
    node: Node
    parameter: str
    table: Table
    indices: str
    scales: str = ""


def tables_of(model: Model) -> tuple[Found, ...]:
    """The tables that may lie anywhere: looked up once in a model, by rows of the batch. Of several blocks those of the
    one that has most."""
    found = [each for index in range(len(model.blocks)) for each in tables_in(model, index)]
    most = Counter(each.block for each in found).most_common(1)
    return tuple(each for each in found if each.block == most[0][0]) if most else ()


def tables_in(model: Model, index: int) -> Iterator[Found]:
    block = model.blocks[index]
    segments = [segment for segment in model.segments if segment.block == index]
    if len(segments) != 1:
        return
    names = dict(zip((p.name for p in block.parameters), segments[0].parameters, strict=True))
    shared = Counter(name for segment in model.segments for name in segment.parameters)
    read = Counter(name for node in block.nodes for name in node.operands)
    for node in block.nodes:
        weight = node.operands[0] if node.op in (BAG, EMBEDDING) else ""
        if weight not in names or read[weight] > 1 or shared[names[weight]] > 1:
            continue
        parameter = model.parameter(names[weight])
        found = table_of(model, block, node)
        if found is not None and parameter.trainable and parameter.dim < 0 and not parameter.members:
            table, indices, scales = found
            yield Found(index, node, parameter.name, table, indices, scales)


def table_of(model: Model, block: Block, node: Node) -> tuple[Table, str, str] | None:
    """How a node looks its table up, with the names of indices and scales; None where these aren't the batch's rows."""
    types, externals = block.types(), {value.name for value in block.externals}
    args = [a.name if isinstance(a, Ref) else a for a in node.args]
    weight, indices = types[str(args[0])], str(args[1])
    shape = types[indices].shape
    if indices not in externals or not 1 <= len(shape) <= 2 or shape[0] != batch_rows(model):
        return None
    length = 1 if len(shape) == 1 else shape[1]
    if node.op == EMBEDDING:
        padding = args[2] if len(args) > 2 else -1
        assert isinstance(padding, int)
        return Table(weight.shape[0], weight.shape[1], length, "none", padding), indices, ""
    scales, mode, padding = args[2], args[3], args[4]
    if len(shape) != 2 or (scales is not None and scales not in externals):
        return None
    assert isinstance(mode, str) and isinstance(padding, int)
    table = Table(weight.shape[0], weight.shape[1], length, mode, padding, scales is not None)
    return table, indices, str(scales or "")


def grouped(model: Model, found: Sequence[Found], placed: Placed) -> Model:
    """The model with these tables in one flat parameter, looked up by one operator; each result keeps its name."""
    index = found[0].block
    kinds = {p.name: p for p in model.parameters}
    flat = TensorType((placed.elements,), kinds[found[0].parameter].type.dtype)
    name = fresh(FLAT, kinds)
    members = tuple(
        Member(
            source=found[box.table].parameter,
            shape=(placed.tables[box.table].rows, placed.tables[box.table].width),
            first=(box.row, box.column),
            size=(box.rows, box.columns),
            start=box.start,
            aliases=kinds[found[box.table].parameter].aliases,
        )
        for box in placed.boxes
    )
    taken = {each.parameter for each in found}
    kept = tuple(p for p in model.parameters if p.name not in taken)
    parameter = Parameter(name, flat, source=name, members=members)
    blocks = list(model.blocks)
    blocks[index] = grouped_block(blocks[index], found, placed, Typed(name, flat))
    segments = tuple(
        without(segment, model.blocks[index], taken, name) if segment.block == index else segment
        for segment in model.segments
    )
    return replace(model, parameters=(parameter, *kept), blocks=tuple(blocks), segments=segments)


def without(segment: Segment, block: Block, taken: Iterable[str], name: str) -> Segment:
    return replace(segment, parameters=(name, *(p for p in segment.parameters if p not in set(taken))))


def grouped_block(block: Block, found: Sequence[Found], placed: Placed, flat: Typed) -> Block:
    weights = {each.node.operands[0] for each in found}
    made = {each.node.name: each for each in found}
    offsets, used = placed.offsets(), set(block.types())
    name = fresh("lookups", used)
    rows = found[0].node.type.shape[0]
    nodes: list[Node] = []
    for node in block.nodes:
        if node.name not in made:
            nodes.append(node)
            continue
        if not any(n.name == name for n in nodes):
            nodes.append(lookups_node(name, found, placed, flat, rows))
        place = next(i for i, each in enumerate(found) if each.node.name == node.name)
        nodes += columns_of(node, name, offsets[place], offsets[place + 1], used)
    parameters = (flat, *(p for p in block.parameters if p.name not in weights))
    return replace(block, parameters=parameters, nodes=tuple(nodes))


def lookups_node(name: str, found: Sequence[Found], placed: Placed, flat: Typed, rows: int) -> Node:
    indices = tuple(Ref(each.indices) for each in found)
    scales = tuple(Ref(each.scales) for each in found if each.scales)
    kind = TensorType((rows, placed.width), flat.type.dtype)
    return Node(name, LOOKUPS, (Ref(flat.name), indices, scales, *placed.arguments), (), kind, common(found))


def columns_of(node: Node, source: str, start: int, stop: int, used: set[str]) -> list[Node]:
    """What a table gave, under the name of the node that looked it up."""
    kind = TensorType((node.type.shape[0], stop - start), node.type.dtype)
    args = (Ref(source), 1, start, stop)
    if len(node.type.shape) == 2:
        return [replace(node, op="aten.slice.Tensor", args=args, kwargs=(), type=kind)]
    name = fresh(f"{node.name}_columns", used)
    used.add(name)
    reshaped = replace(node, op="aten.reshape.default", args=(Ref(name), node.type.shape), kwargs=())
    return [Node(name, "aten.slice.Tensor", args, (), kind, node.module), reshaped]


def common(found: Sequence[Found]) -> str:
    """The path that the modules of all tables share."""
    parts = [each.node.module.split(".") for each in found]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def fresh(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    return next(n for n in (name, *(f"{name}_{i}" for i in range(1, len(used) + 2))) if n not in used)
