"""What one block keeps from its forward for its backward where nothing is recomputed: all that autograd keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoplan.cost import Operator
from autoplan.cost.operators.kept_beside import bytes_beside
from autoplan.cost.prices import layout_bytes
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh

Located = tuple[str, Layout]  # a value, and the layout in which it is held


def kept_bytes(
    choice: BlockChoice, operators: Mapping[str, Operator], types: Mapping[str, TensorType], mesh: Mesh
) -> int:
    """Bytes kept for the backward: each value once in each layout in which someone keeps it, and what operators keep
    beside them."""
    extra = sum(bytes_beside(operators[name], strategy, mesh) for name, strategy in choice.strategies)
    return round(values_bytes(kept_values(choice, operators, types, mesh), types, mesh) + extra)


def kept_values(
    choice: BlockChoice, operators: Mapping[str, Operator], types: Mapping[str, TensorType], mesh: Mesh
) -> set[Located]:
    """What autograd keeps, each value in each layout in which an operator keeps it."""
    kept: set[Located] = set()
    for name, strategy in choice.strategies:
        operator = operators[name]
        for place in operator.keeps:
            value = name if place == "out" else operator.node.operands[int(place)]
            rank = len(types[value].shape)
            layout = strategy.output(rank, mesh) if place == "out" else strategy.input(int(place), rank, mesh)
            kept.add((value, layout))
    return kept


def values_bytes(values: Iterable[Located], types: Mapping[str, TensorType], mesh: Mesh) -> int:
    return sum(layout_bytes(types[value], layout, mesh) for value, layout in values)
