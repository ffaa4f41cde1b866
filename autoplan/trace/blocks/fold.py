"""Segments that do the same share one block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoplan.ir.graph import (
    READ_BUFFER,
    Argument,
    Block,
    Buffer,
    Model,
    Node,
    Parameter,
    Ref,
    Segment,
    TensorType,
    Typed,
    buffers_updated,
    map_refs,
)
from autoplan.trace.blocks.beside import beside_layers
from autoplan.trace.blocks.cut import Piece, cut
from autoplan.trace.blocks.flat import Flat
from autoplan.trace.blocks.value_names import block_name, constant_names, stem, unique

COUNTED = ("autoplan.count_valid", "autoplan.count_classes")  # over the whole batch, before its first microbatch


STATEFUL = ("autoplan.dropout", "autoplan.uniform", READ_BUFFER)


@dataclass(frozen=True)
class Scope:
    """What a piece reads from outside, each in the order of its first use, and what it is called inside.

    frozen  of the parameters those that aren't trained
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    externals: tuple[str, ...]
    names: Mapping[str, str]
    frozen: tuple[str, ...]


def fold(flat: Flat) -> Model:
    """The flat program as a chain; equal pieces share a block, named after the first."""
    parameters = frozenset(p.name for p in flat.parameters)
    constants = constant_nodes(flat.nodes, parameters)
    flat, constants = with_named_constants(flat, constants)
    flat = replace(flat, nodes=beside_layers(flat.nodes, flat.tree, constants, parameters, flat.output))
    types = types_of(flat)
    blocks: dict[tuple, int] = {}
    made: list[Block] = []
    segments = []
    taken: set[str] = set()
    for piece in cut(flat, constants):
        scope = scope_of(piece, flat, parameters)
        name = block_name(piece, flat.tree, parameters)
        key = (name, signature(piece, scope, types))
        if key not in blocks:
            blocks[key] = len(made)
            made.append(block_of(unique(name, taken, first=2, between=""), piece, scope, types))
        segments.append(Segment(blocks[key], piece.path, scope.parameters, scope.buffers, scope.externals))
    kept = tuple(node for node in flat.nodes if node.name in constants)
    of_batch = {value.name for value in flat.batch}
    for node in kept:
        if not of_batch.isdisjoint(node.operands):
            of_batch.add(node.name)
    counts = tuple(node.name for node in kept if node.op in COUNTED and node.name in of_batch)
    return Model(
        flat.name, flat.batch, flat.parameters, flat.buffers, kept, counts, tuple(made), tuple(segments), flat.notes
    )


def constant_nodes(nodes: Iterable[Node], parameters: Iterable[str]) -> frozenset[str]:
    """Names of the nodes that no parameter reaches, and that neither draw random numbers nor read or update buffers
    that change."""
    reached = set(parameters)
    constant = set()
    for node in nodes:
        if reached.isdisjoint(node.operands) and node.op not in STATEFUL and not buffers_updated(node):
            constant.add(node.name)
        else:
            reached.add(node.name)
    return frozenset(constant)


def with_named_constants(flat: Flat, constants: frozenset[str]) -> tuple[Flat, frozenset[str]]:
    """The program with its constants named to be read; no name is a parameter's, a buffer's or a batch input's."""
    entering: tuple[Typed | Parameter | Buffer, ...] = (*flat.batch, *flat.parameters, *flat.buffers)
    taken = {value.name for value in entering} | {"x"}
    temporary = {node.name: f"{node.name}'" for node in flat.nodes}  # no identifier, so no clash with the new names
    names = constant_names((node for node in flat.nodes if node.name in constants), taken)
    names = {**temporary, **names}
    nodes = tuple(renamed(node, names) for node in flat.nodes)
    return replace(flat, nodes=nodes, output=names[flat.output]), frozenset(names[name] for name in constants)


def types_of(flat: Flat) -> dict[str, TensorType]:
    entering: tuple[Typed | Parameter | Buffer, ...] = (*flat.batch, *flat.parameters, *flat.buffers)
    return {value.name: value.type for value in entering} | {node.name: node.type for node in flat.nodes}


def scope_of(piece: Piece, flat: Flat, parameters: frozenset[str]) -> Scope:
    """Sorts what a piece reads, and names everything inside it."""
    inside = {node.name for node in piece.nodes} | set(piece.inputs)
    updated = {name for node in piece.nodes for name in buffers_updated(node)}
    read = tuple(dict.fromkeys(n for node in piece.nodes for n in node.operands if n not in inside))
    own = tuple(name for name in read if name in parameters)
    externals = tuple(name for name in read if name not in parameters and name not in updated)
    buffers = tuple(name for name in read if name in updated)
    prefix = f"{piece.path}." if piece.path else ""
    names = {name: name.removeprefix(prefix) for name in (*own, *buffers)} | {name: name for name in externals}
    taken = set(names.values()) | {value.name for value in flat.batch}
    for name in piece.inputs:
        names[name] = unique("x", taken)
    for node in piece.nodes:
        names[node.name] = unique(stem(node, parameters), taken)
    frozen = {p.name for p in flat.parameters if not p.trainable}
    return Scope(own, buffers, externals, names, tuple(name for name in own if name in frozen))


def signature(piece: Piece, scope: Scope, types: Mapping[str, TensorType]) -> tuple:
    """Equal for pieces that do the same, whatever their values are called."""
    entering = (*piece.inputs, *scope.parameters, *scope.buffers, *scope.externals)
    numbers = {name: str(index) for index, name in enumerate((*entering, *(node.name for node in piece.nodes)))}
    groups = tuple(map(len, (piece.inputs, scope.parameters, scope.buffers, scope.externals)))
    frozen = tuple(numbers[name] for name in scope.frozen)
    nodes = tuple(
        (node.op, repr(renamed_argument(node.args, numbers)), repr(renamed_argument(node.kwargs, numbers)), node.type)
        for node in piece.nodes
    )
    outputs = tuple(numbers[name] for name in piece.outputs)
    return groups, tuple(types[name] for name in entering), nodes, outputs, frozen


def block_of(name: str, piece: Piece, scope: Scope, types: Mapping[str, TensorType]) -> Block:
    def typed(names: tuple[str, ...]) -> tuple[Typed, ...]:
        return tuple(Typed(scope.names[n], types[n]) for n in names)

    return Block(
        name=name,
        inputs=typed(piece.inputs),
        externals=typed(scope.externals),
        parameters=typed(scope.parameters),
        buffers=typed(scope.buffers),
        nodes=tuple(renamed(node, scope.names) for node in piece.nodes),
        outputs=tuple(scope.names[n] for n in piece.outputs),
        frozen=tuple(scope.names[n] for n in scope.frozen),
    )


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    args, kwargs = renamed_argument(node.args, names), renamed_argument(node.kwargs, names)
    assert isinstance(args, tuple) and isinstance(kwargs, tuple)
    return replace(node, name=names.get(node.name, node.name), args=args, kwargs=kwargs)


def renamed_argument(argument: Argument, names: Mapping[str, str]) -> Argument:
    """An argument with its references renamed."""
    return map_refs(argument, lambda ref: Ref(names.get(ref.name, ref.name)))
