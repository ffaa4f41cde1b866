"""Bytes of a whole model that bound what any plan of it holds, whatever its layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.cost import Operator
from autoplan.ir.graph import Block, Model


@dataclass(frozen=True)
class Sizes:
    """Whole bytes: of the batch of one step, undivided.

    parameters  of all
    largest     result of any operator
    repeated    segments whose block stands in the chain more than once, so that they may be recomputed
    inputs      of the block that is least to keep of those
    rebuilt     of one of those: what autograd keeps of it beyond its inputs, and its largest result with its gradient
    """

    parameters: int
    largest: int
    repeated: int
    inputs: int
    rebuilt: int


def sizes_of(model: Model, operators: tuple[Mapping[str, Operator], ...]) -> Sizes:
    uses = Counter(segment.block for segment in model.segments)
    again = [i for i in range(len(model.blocks)) if uses[i] > 1]
    results = [max((node.type.bytes for node in block.nodes), default=0) for block in model.blocks]
    inputs = {i: sum(v.type.bytes for v in model.blocks[i].inputs) for i in again}
    rebuilt = [kept_bytes(model.blocks[i], operators[i]) - inputs[i] + 2 * results[i] for i in again]
    return Sizes(
        sum(p.type.bytes for p in model.parameters),
        max(results, default=0),
        sum(uses[i] for i in again),
        min(inputs.values(), default=0),
        max(0, max(rebuilt, default=0)),
    )


def kept_bytes(block: Block, operators: Mapping[str, Operator]) -> int:
    """Of the results and inputs of a block all that some operator keeps, each once."""
    types = {v.name: v.type for v in block.inputs} | {node.name: node.type for node in block.nodes}
    kept = {
        operator.node.name if place == "out" else operator.node.operands[int(place)]
        for operator in operators.values()
        for place in operator.keeps
    }
    return sum(types[name].bytes for name in kept if name in types)
