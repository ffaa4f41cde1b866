"""What forward makes of a buffer -> an operator that writes it down, and reads of the buffer as it was before.

On one device a buffer changes where forward says so, and what has read it keeps the old values. In the graph every
read is of a copy, and one operator puts the last value in its place, right after the value is there. So the order
doesn't matter, autograd saves no tensor that changes, and a second forward in the backward reads what the first read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoplan.errors import TraceError
from autoplan.ir.graph import READ_BUFFER, UPDATE_BUFFER, Node, Ref, map_refs
from autoplan.trace.builder import Builder, Value

DETACH = "aten.detach.default"


def with_updates(builder: Builder, changed: Mapping[str, Value]) -> None:
    """Adds to the builder's nodes a read and an update of each buffer in ``changed``, name -> the value after forward.

    TraceError where that value is no tensor of the buffer's shape.
    """
    nodes = tuple(builder.nodes.values())
    reads = {name: read(builder, name, nodes) for name in changed}
    ahead: dict[str, list[Node]] = {}  # of a node, the reads that it is the first to need
    for name, ref in reads.items():
        reader = next((node.name for node in nodes if name in node.operands), "")
        ahead.setdefault(reader, []).append(builder.nodes[ref.name])
    after: dict[str, list[Node]] = {}  # of a node, what writes down its value
    for name, value in changed.items():
        value = reads.get(value.name, value) if isinstance(value, Ref) else value
        check_shape(builder, name, value)
        assert isinstance(value, Ref)
        after.setdefault(value.name if value.name in builder.nodes else "", []).extend(update(builder, name, value))
    builder.nodes = {}
    for node in (*ahead.get("", ()), *after.get("", ()), *nodes):
        for each in (*ahead.get(node.name, ()), reading(node, reads)):
            builder.nodes |= {placed.name: placed for placed in (each, *after.get(each.name, ()))}


def read(builder: Builder, name: str, nodes: Iterable[Node]) -> Ref:
    """A buffer's value before forward, in the module that is the first to read it."""
    builder.module = next((node.module for node in nodes if name in node.operands), "")
    return builder.emit(READ_BUFFER, Ref(name), type=builder.types[name])


def update(builder: Builder, name: str, value: Ref) -> tuple[Node, ...]:
    """The nodes that put a value, of which no gradient is asked, in a buffer's place."""
    known = len(builder.nodes)
    builder.module = builder.nodes[value.name].module if value.name in builder.nodes else ""
    value = builder.cast(value, builder.types[name].dtype)
    carries = builder.type(value).floating and builder.maker(value, DETACH) is None
    still = builder.emit(DETACH, value) if carries else value
    builder.emit(UPDATE_BUFFER, Ref(name), still, type=builder.types[name])
    return tuple(builder.nodes.values())[known:]


def reading(node: Node, reads: Mapping[str, Ref]) -> Node:
    """The node, with what a buffer was before in its place."""
    if reads.keys().isdisjoint(node.operands):
        return node
    kwargs = tuple((key, map_refs(value, lambda ref: reads.get(ref.name, ref))) for key, value in node.kwargs)
    args = tuple(map_refs(value, lambda ref: reads.get(ref.name, ref)) for value in node.args)
    return replace(node, args=args, kwargs=kwargs)


def check_shape(builder: Builder, name: str, value: Value) -> None:
    wanted = builder.types[name].shape
    if not isinstance(value, Ref) or builder.shape(value) != wanted:
        found = list(builder.shape(value)) if isinstance(value, Ref) else "chosen rows"
        cause = f"forward puts {found} in place of this buffer of {list(wanted)}, which has to keep its shape"
        raise TraceError(name, cause, "keep a buffer of the largest size and write to its first part")
