"""Weights that experts have each by itself, put one after another, as one parameter along whose first dim they split.

    stack([expert_0.wi.weight, expert_1.wi.weight, …])  ->  experts.wi.weight [experts, f, h], with a member for each

Else every rank would hold all of them, to read its own experts' part.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import Block, Member, Model, Node, Parameter, Segment, TensorType, Typed
from autoplan.trace.blocks import renamed

FRONT, JOINED = "aten.unsqueeze.default", "aten.cat.default"


@dataclass(frozen=True)
class Stack:
    """Parameters that one node of a block puts together: what it is called, and they, by the block's names."""

    node: str
    parts: tuple[str, ...]


def with_stacked_weights(model: Model) -> Model:
    """The model with each stack of whole parameters as one."""
    times = Counter(name for segment in model.segments for name in segment.parameters)
    own = {p.name: p for p in model.parameters if p.dim < 0 and not p.members and times[p.name] == 1}
    taken = {p.name for p in model.parameters} | {b.name for b in model.buffers}
    blocks, segments, made = list(model.blocks), list(model.segments), list(model.parameters)
    for index, block in enumerate(model.blocks):
        places = [place for place, segment in enumerate(segments) if segment.block == index]
        stacks = [s for s in stacks_in(block) if all(fits(s, names_of(block, segments[p]), own) for p in places)]
        if not stacks:
            continue
        names = fresh_names(stacks, set(block.types()))
        blocks[index] = stacked_block(block, stacks, names)
        for place in places:
            whole = {stack: joined(stack, names_of(block, segments[place]), own, taken) for stack in stacks}
            segments[place] = stacked_segment(segments[place], block, whole)
            for parameter in whole.values():
                members = {member.source for member in parameter.members}
                first = next(i for i, p in enumerate(made) if p.source in members and not p.members)
                made[first] = parameter
                made = [p for p in made if p.members or p.source not in members]
    return replace(model, parameters=tuple(made), blocks=tuple(blocks), segments=tuple(segments))


def names_of(block: Block, segment: Segment) -> dict[str, str]:
    """The model's names of a block's parameters, by the block's."""
    return {p.name: name for p, name in zip(block.parameters, segment.parameters, strict=True)}


def stacks_in(block: Block) -> list[Stack]:
    nodes, parameters = {n.name: n for n in block.nodes}, {p.name: p.type for p in block.parameters}
    readers = Counter(name for node in block.nodes for name in node.operands)
    found = []
    for node in block.nodes:
        if node.op != JOINED or node.args[1:] not in ((), (0,)):
            continue
        fronts = [nodes.get(name) for name in node.operands]
        parts = tuple(f.operands[0] for f in fronts if f is not None and f.op == FRONT and f.args[1] == 0)
        alone = all(readers[name] == 1 for name in (*parts, *node.operands)) and len(parts) == len(fronts) > 1
        if alone and all(part in parameters for part in parts) and len({parameters[part] for part in parts}) == 1:
            found.append(Stack(node.name, parts))
    return found


def fits(stack: Stack, names: Mapping[str, str], own: Mapping[str, Parameter]) -> bool:
    found = [own.get(names[part]) for part in stack.parts]
    return None not in found and len({p.trainable for p in found if p is not None}) == 1


def fresh_names(stacks: Sequence[Stack], taken: set[str]) -> dict[str, str]:
    return {stack.node: fresh(common(stack.parts), taken) for stack in stacks}


def common(names: Sequence[str]) -> str:
    """What several names share, part by part: experts.wi.weight of experts.expert_0.wi.weight and its like."""
    columns = list(zip(*(name.split(".") for name in names), strict=False))
    return ".".join(column[0] for column in columns if len(set(column)) == 1) or "weights"


def fresh(name: str, taken: set[str]) -> str:
    """A name that none has yet, and that is taken from now on."""
    lead, _, last = name.rpartition(".")
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{lead}.{last}_{number}" if lead else f"{last}_{number}"
    taken.add(found)
    return found


def joined(stack: Stack, names: Mapping[str, str], own: Mapping[str, Parameter], taken: set[str]) -> Parameter:
    parts = [own[names[part]] for part in stack.parts]
    shape = parts[0].type.shape
    members = tuple(Member(p.source, shape, (0,) * len(shape), shape, 0, p.aliases) for p in parts)
    name = fresh(common([p.name for p in parts]), taken)
    kind = TensorType((len(parts), *shape), parts[0].type.dtype)
    return restacked(Parameter(name, kind, source=name, trainable=parts[0].trainable, members=members))


def restacked(parameter: Parameter) -> Parameter:
    """A stack whose members have the sizes of its entries, and are as many; any other parameter as it is."""
    count, *rest = parameter.type.shape or (0,)
    if not parameter.members or not rest:
        return parameter
    shape = tuple(rest)
    members = enumerate(parameter.members[:count])
    return replace(
        parameter,
        members=tuple(replace(m, shape=shape, size=shape, start=n * math.prod(shape)) for n, m in members),
    )


def stacked_block(block: Block, stacks: Sequence[Stack], names: Mapping[str, str]) -> Block:
    nodes = {node.name: node for node in block.nodes}
    gone = {name for stack in stacks for name in (stack.node, *nodes[stack.node].operands)}
    first = {stack.parts[0]: Typed(names[stack.node], nodes[stack.node].type) for stack in stacks}
    dropped = {part for stack in stacks for part in stack.parts}
    parameters = (first.get(p.name, p) for p in block.parameters if p.name in first or p.name not in dropped)
    frozen = (first[f].name if f in first else f for f in block.frozen if f in first or f not in dropped)
    kept: tuple[Node, ...] = tuple(renamed(node, names) for node in block.nodes if node.name not in gone)
    return replace(block, parameters=tuple(parameters), frozen=tuple(frozen), nodes=kept)


def stacked_segment(segment: Segment, block: Block, whole: Mapping[Stack, Parameter]) -> Segment:
    first = {stack.parts[0]: parameter.name for stack, parameter in whole.items()}
    dropped = {part for stack in whole for part in stack.parts}
    names = names_of(block, segment)
    parameters = (
        first.get(p.name, names[p.name]) for p in block.parameters if p.name in first or p.name not in dropped
    )
    return replace(segment, parameters=tuple(parameters))
