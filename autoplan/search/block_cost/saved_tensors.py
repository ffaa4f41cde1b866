"""Bytes of values, each in the layout in which it is held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoplan.cost.prices import layout_bytes
from autoplan.ir.graph import TensorType
from autoplan.ir.mesh import Mesh
from autoplan.search.block_cost.live_forward import Located


def values_bytes(values: Iterable[Located], types: Mapping[str, TensorType], mesh: Mesh) -> int:
    return sum(layout_bytes(types[value], layout, mesh) for value, layout in values)
