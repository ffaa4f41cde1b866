"""A pass over the graph: gathers the batch's rows, or sums over them, before operators that need all of them.

Operators mostly take rows of the batch as they come. Some need all of them: a contrastive loss multiplies each row by
every other, dice loss divides by a sum over them, a graph's messages go from any row to any. Where the walk of
``batch_axes`` stops at such an operator, the operands of its cheapest strategy are moved into the states that it asks
for: rows gathered, sums made whole, what every rank computed alike split again. Microbatches can exchange nothing, so
on their axis such a model stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoplan.ir.graph import DTYPE_BYTES, Block, Model, Node, Ref, TensorType, batch_rows, free_name, map_refs
from autoplan.ir.layout import P, State
from autoplan.redistribution.steps import find_step, neutral
from autoplan.rules.registry import AxisStrategy
from autoplan.search.space.batch_axes import CONSTANTS, MOVE, BatchEnds, first_stop
from autoplan.trace.blocks import renamed

MOST = 256  # operators added before the attempt is given up
MOST_WAYS = 64  # by which a dim has to divide before the batch's ranks split it, where the rows divide by as many

CROSSED = {"": 0.0, "all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 0.25}
"""Bytes that cross the links of each rank for each byte of the whole tensor."""
REPEATED = 4.0
"""What a byte of a result counts that every rank computes whole: it is read and written again and again after it."""

Moves = tuple[tuple[State, State] | None, ...]
"""For each value the state that it is in and the one that is wanted; None where they are one."""


def with_batch_moves(model: Model) -> Model:
    """The model with such operators, or as it is where they don't make its batch splittable."""
    changed = model
    for _ in range(MOST):
        stop = first_stop(changed)
        if stop is None:
            return changed
        moves = cheapest(changed, stop)
        if not moves:
            return model
        changed = moved(changed, stop, moves)
    return model


def cheapest(model: Model, stop: BatchEnds) -> Moves:
    """What takes the operands to where one of the operator's strategies wants them; none where nothing does."""
    types, carries = surroundings(model, stop.scope)
    ways = math.gcd(batch_rows(model), MOST_WAYS)
    best: Moves = ()
    least = math.inf
    for strategy in stop.usable:
        wanted = tuple(
            None if met == state else (met, state) for met, state in zip(stop.met, strategy.inputs, strict=True)
        )
        moves = [(name, pair) for name, pair in zip(stop.values, wanted, strict=True) if pair is not None]
        price = sum(bytes_of(types[name]) * crossed(*pair, name in carries) for name, pair in moves)
        price += further(stop, strategy, types)
        if moves and price < least and all(divides(types[name], pair[1], ways) for name, pair in moves):
            best, least = wanted, price
    return best


def surroundings(model: Model, scope: int) -> tuple[Mapping[str, TensorType], frozenset[str]]:
    """The types of a scope's values, and which of them carry gradients."""
    if scope == CONSTANTS:
        return model.types(), frozenset()
    return model.blocks[scope].types(), model.blocks[scope].carries_gradient()


def crossed(met: State, wanted: State, carries: bool) -> float:
    """Bytes across the links, there and back, for each of the tensor; infinite where no step leads there. None where
    the states differ by the gradient alone, of a tensor that has none."""
    if neutral(met, carries) == neutral(wanted, carries):
        return 0.0
    step = find_step(met, wanted, carries)
    return math.inf if step is None else CROSSED[step.forward] + CROSSED[step.backward]


def further(stop: BatchEnds, strategy: AxisStrategy, types: Mapping[str, TensorType]) -> float:
    """What an operator's result costs: nothing where it is split."""
    if stop.node is None or strategy.output.kind == "S":
        return 0.0
    size = bytes_of(types[stop.node.name])
    return CROSSED["all-reduce"] * size * (strategy.output == P) + REPEATED * size * (not strategy.factor)


def divides(kind: TensorType, state: State, ways: int) -> bool:
    return state.kind != "S" or kind.shape[state.dim] % ways == 0


def bytes_of(kind: TensorType) -> int:
    return math.prod(kind.shape) * DTYPE_BYTES[kind.dtype]


def moved(model: Model, stop: BatchEnds, moves: Moves) -> Model:
    """The model with these moves in front of the operator, or behind the value that its readers want otherwise."""
    types, _ = surroundings(model, stop.scope)
    taken, names, new = set(types), list(stop.values), []
    for place, (name, pair) in enumerate(zip(stop.values, moves, strict=True)):
        if pair is not None:
            names[place] = free_name(f"{name}_moved", taken)
            taken.add(names[place])
            module = stop.node.module if stop.node is not None else ""
            new.append(Node(names[place], MOVE, (Ref(name), *map(str, pair)), (), types[name], module))
    if stop.node is None:
        return behind(model, stop.scope, stop.values[0], new[0])
    if stop.scope == CONSTANTS:
        return recounted(replace(model, constants=in_front(model.constants, stop.node, new, names)))
    block = model.blocks[stop.scope]
    return with_block(model, stop.scope, replace(block, nodes=in_front(block.nodes, stop.node, new, names)))


def in_front(nodes: Sequence[Node], reader: Node, new: Sequence[Node], names: Sequence[str]) -> tuple[Node, ...]:
    """The nodes with new ones in front of one, whose operands are these instead."""
    operands = iter(names)
    args = tuple(map_refs(argument, lambda _: Ref(next(operands))) for argument in reader.args)
    kwargs = tuple((key, map_refs(value, lambda _: Ref(next(operands)))) for key, value in reader.kwargs)
    reading = replace(reader, args=args, kwargs=kwargs)
    return tuple(n for node in nodes for n in ((*new, reading) if node == reader else (node,)))


def behind(model: Model, scope: int, value: str, new: Node) -> Model:
    """The model with a node that moves a value, and is read in its place: by whoever a block hands it to, and by all
    that read a constant."""
    names = {value: new.name}
    if scope != CONSTANTS:
        block = model.blocks[scope]
        outputs = tuple(names.get(name, name) for name in block.outputs)
        return with_block(model, scope, replace(block, nodes=(*block.nodes, new), outputs=outputs))
    constants: list[Node] = []
    for node in model.constants:
        constants += [node, new] if node.name == value else [renamed(node, names)]
    segments = (replace(s, externals=tuple(names.get(name, name) for name in s.externals)) for s in model.segments)
    return recounted(replace(model, constants=tuple(constants), segments=tuple(segments)))


def recounted(model: Model) -> Model:
    """Counts of what is moved are constants like others: the others are counted before any collective is run."""
    after = {node.name for node in model.constants if node.op == MOVE}
    for node in model.constants:
        if not after.isdisjoint(node.operands):
            after.add(node.name)
    return replace(model, counts=tuple(name for name in model.counts if name not in after))


def with_block(model: Model, index: int, block: Block) -> Model:
    return replace(model, blocks=(*model.blocks[:index], block, *model.blocks[index + 1 :]))
