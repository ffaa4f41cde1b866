"""Bytes of values, and of what operators keep beside them for their backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoplan.cost import Operator
from autoplan.cost.prices import layout_bytes
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy

Located = tuple[str, Layout]  # a value, and the layout in which it is held


def mask_bytes(operator: Operator, strategy: Strategy, types: Mapping[str, TensorType], mesh: Mesh) -> float:
    """What an operator keeps beside its operands and its result."""
    if not operator.beside:
        return 0.0
    kind = types[operator.node.name]
    local = layout_bytes(kind, strategy.output(len(kind.shape), mesh), mesh)
    return operator.beside * (local // max(kind.bytes // max(kind.elements, 1), 1))


def values_bytes(values: Iterable[Located], types: Mapping[str, TensorType], mesh: Mesh) -> int:
    return sum(layout_bytes(types[value], layout, mesh) for value, layout in values)
