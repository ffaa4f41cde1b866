"""Sizes of a whole model that bound its plans: bytes that any of them holds, tokens of a row, experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Operator
from autoplan.ir.graph import Block, Model
from autoplan.search.space.row_systems import SEQUENCE, attends, has_sequence


@dataclass(frozen=True)
class Sizes:
    """Whole bytes: of the batch of one step, undivided.

    parameters  of all that are trained
    frozen      of the others
    largest     result of any operator
    repeated    segments whose block stands in the chain more than once, so that they may be recomputed
    inputs      of the block that is least to keep of those
    rebuilt     of one of those: what autograd keeps of it beyond its inputs, and its largest result with its gradient
    """

    parameters: int
    frozen: int
    largest: int
    repeated: int
    inputs: int
    rebuilt: int


def tokens_of(model: Model, operators: Sequence[Mapping[str, Operator]]) -> int:
    """Of the shortest sequence between blocks, where attention runs over one; else 0."""
    kinds = [v.type for block in model.blocks for v in block.inputs if has_sequence(v.type)]
    found = any(attends(operator) for own in operators for operator in own.values())
    return min((kind.shape[SEQUENCE] for kind in kinds), default=0) if found else 0


def experts_of(operators: Sequence[Mapping[str, Operator]]) -> int:
    """Of the mixture with the fewest; 0 without one."""
    mixtures = [o for own in operators for o in own.values() if o.rule.cost == "experts"]
    return min((operator.operands[-1].shape[0] for operator in mixtures), default=0)


def sizes_of(model: Model, operators: tuple[Mapping[str, Operator], ...]) -> Sizes:
    uses = Counter(segment.block for segment in model.segments)
    again = [i for i in range(len(model.blocks)) if uses[i] > 1]
    results = [max((node.type.bytes for node in block.nodes), default=0) for block in model.blocks]
    inputs = {i: sum(v.type.bytes for v in model.blocks[i].inputs) for i in again}
    rebuilt = [kept_bytes(model.blocks[i], operators[i]) - inputs[i] + 2 * results[i] for i in again]
    return Sizes(
        sum(p.type.bytes for p in model.parameters if p.trainable),
        sum(p.type.bytes for p in model.parameters if not p.trainable),
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
