"""What a loop assigns part by part, joined once.

``y[:, i] = f(x, i)`` is exported as a new y for every i: the parts of the one before up to i, the new one, and the rest
of what y began as. Where nothing else reads these, the last one alone is made, of all the parts at once: n parts of n
tensors would be copied otherwise, and the rests of a y of zeros would lie in memory, each by itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoplan.ir.graph import Node, Ref
from autoplan.trace.builder import Builder
from autoplan.trace.passes.clean import used

JOIN, SLICE = "aten.cat.default", "aten.slice.Tensor"


def joined_once(builder: Builder, nodes: Iterable[Node], output: str) -> tuple[Node, ...]:
    """The nodes that the output depends on, in which each such tensor is joined of what was assigned."""
    nodes = used(nodes, output)
    by_name = {node.name: node for node in nodes}
    reads = Counter(name for node in nodes for name in node.operands) + Counter([output])
    taken: dict[str, tuple[str, ...]] = {}  # by the slice of a concatenation, its parts there
    passing: set[str] = set()  # concatenations that nothing reads but such a slice
    for node in nodes:
        if node.op == JOIN:
            for name in node.operands:
                parts = parts_in(builder, name, node, by_name, reads)
                if parts:
                    taken[name] = parts
                    passing.update(by_name[name].operands)
    joined = (spread(n, taken) if n.op == JOIN and n.name not in passing else n for n in nodes)
    return used(joined, output) if taken else nodes


def parts_in(
    builder: Builder, name: str, reader: Node, by_name: Mapping[str, Node], reads: Mapping[str, int]
) -> tuple[str, ...]:
    """The parts that a slice takes of a concatenation along the reader's dim, where each is read this once and the
    slice begins and ends between parts; () else."""
    part = by_name.get(name)
    if part is None or part.op != SLICE or reads[name] != 1 or len(part.args) != 4:
        return ()
    _, dim, first, last = part.args
    whole = by_name.get(part.operands[0])
    if whole is None or whole.op != JOIN or reads[whole.name] != 1 or {dim, whole.args[1]} != {reader.args[1]}:
        return ()
    start, found = 0, []
    assert isinstance(dim, int) and isinstance(first, int) and isinstance(last, int)
    for each in whole.operands:
        kind = builder.types[each]
        end = start + kind.shape[dim]
        if start < last and first < end:
            if start < first or last < end or kind.dtype != whole.type.dtype:
                return ()
            found.append(each)
        start = end
    return tuple(found)


def spread(node: Node, taken: Mapping[str, tuple[str, ...]]) -> Node:
    """A concatenation with the parts of its slices in their place."""
    left, found = list(reversed(node.operands)), []
    while left:
        name = left.pop()
        if name in taken:
            left += reversed(taken[name])
        else:
            found.append(Ref(name))
    return replace(node, args=(tuple(found), *node.args[1:])) if len(found) != len(node.operands) else node
