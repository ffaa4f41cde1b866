"""Whether two graphs compute the same, whatever their values are called and wherever they are cut into segments.

Each value has a key made of its operator, its arguments and the keys of what it reads, down to parameters, buffers and
inputs by name. Two results are the same computation where their keys are equal.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoplan.evaluation.evaluation_graph import TRACKED, evaluated_node
from autoplan.ir.graph import BATCH_NORM, READ_BUFFER, UPDATE_BUFFER, Argument, Model, Node, Ref, TensorType
from autoplan.ir.randomness import DROPOUT

SAME_VALUE = ("aten.reshape.default", "aten.expand.default", "aten.to.dtype", READ_BUFFER)
"""Operators that may leave a tensor as it is: then they are none. At one row no expansion is left of many."""

MOMENTUM = 7  # of batch norm, which matters in training alone


@dataclass
class Keys:
    """The keys of one graph's values.

    training  whether what differs in training alone counts: dropout, how batch norm takes its statistics, what
              becomes of buffers
    updates   the keys of what buffers become
    places    of each key the module and the operator that made it, the first that did
    """

    training: bool = False
    result: str = ""
    updates: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)


def keys_of(model: Model, training: bool = False) -> Keys:
    """The keys of a whole model, in evaluation or in training."""
    found = Keys(training)
    entering = [v.name for v in model.batch] + [b.name for b in model.buffers]
    outer = {name: leaf(name) for name in entering}
    walk(model.constants, outer, model.types(), found)
    given: list[str] = []
    for segment in model.segments:
        block = model.blocks[segment.block]
        known = {v.name: key for v, key in zip(block.inputs, given, strict=True)}
        for values, names in ((block.parameters, segment.parameters), (block.buffers, segment.buffers)):
            known |= {v.name: leaf(name) for v, name in zip(values, names, strict=True)}
        known |= {v.name: outer[name] for v, name in zip(block.externals, segment.externals, strict=True)}
        walk(block.nodes, known, dict(block.types()), found)
        given = [known[name] for name in block.outputs]
    found.result = digest(given[0], sorted(found.updates)) if training else given[0]
    return found


def walk(nodes: Iterable[Node], known: dict[str, str], types: dict[str, TensorType], found: Keys) -> None:
    """Adds the nodes' keys to what is known."""
    same = SAME_VALUE if found.training else (*SAME_VALUE, DROPOUT)
    left_out = (TRACKED,) if found.training else (TRACKED, MOMENTUM)
    for node in nodes if found.training else map(evaluated_node, nodes):
        types[node.name] = node.type
        first = node.operands[0] if node.operands else ""
        if node.op in same and types[first] == node.type:
            known[node.name] = known[first]
            continue
        args = [a for i, a in enumerate(node.args) if node.op != BATCH_NORM or i not in left_out]
        kwargs = [(name, argument(value, known)) for name, value in sorted(node.kwargs)]
        key = digest(node.op, [argument(a, known) for a in args], kwargs)
        known[node.name] = key
        if node.op == UPDATE_BUFFER:
            found.updates.append(key)
        found.places.setdefault(key, f"{node.op} of {node.module or 'the root'}")


def argument(value: Argument, known: Mapping[str, str]) -> object:
    if isinstance(value, Ref):
        return known[value.name]
    if isinstance(value, tuple):
        return tuple(argument(item, known) for item in value)
    return repr(value)  # 1, 1.0 and True are equal


def leaf(name: str) -> str:
    return f"<{name}>"


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def difference(one: Model, other: Model, training: bool = False) -> str:
    """Where the second computes otherwise than the first, as text; "" where their results are the same: in evaluation,
    or in training, where what is dropped and how statistics are taken is the same, too."""
    mine, theirs = keys_of(one, training), keys_of(other, training)
    if mine.result == theirs.result:
        return ""
    added = next((place for key, place in theirs.places.items() if key not in mine.places), "")
    dropped = next((place for key, place in mine.places.items() if key not in theirs.places), "")
    return added or dropped or "its result is another value"
