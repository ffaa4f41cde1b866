"""The collectives inside the bodies that run in place of an operator, by the body's name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autoplan.graph import DTYPE_BYTES
from autoplan.mesh import Mesh
from autoplan.pricing.operator import Operator, local_shape
from autoplan.strategies import Strategy
from autoplan.typed import Collective

FLOAT32_BYTES = 4  # statistics are reduced in float32


def cross_entropy(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """For each row the greatest logit, the sum of exponentials and the target's logit; nothing backward."""
    rows = math.prod(shape[:-1]) * FLOAT32_BYTES
    ops = ("all_reduce_max", "all_reduce", "all_reduce")
    return tuple(Collective(op, (axis,), (), "all-reduce", "", rows, 0) for op in ops)


def batch_norm(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """Two sums for each channel, forward and backward."""
    sums = 2 * shape[1] * FLOAT32_BYTES
    return (Collective("all_reduce", (axis,), (), "all-reduce", "all-reduce", sums, sums),)


def total(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """The value itself; nothing backward."""
    size = math.prod(shape) * DTYPE_BYTES[operator.node.type.dtype]
    return (Collective("all_reduce", (axis,), (), "all-reduce", "", size, 0),)


BODIES: Mapping[str, Callable[[Operator, list[int], str], tuple[Collective, ...]]] = {
    "vocab_parallel_cross_entropy": cross_entropy,
    "sync_batch_norm": batch_norm,
    "batch_total": total,
    "batch_count": total,
}


def body_collectives(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Collective, ...]:
    """Every collective that an operator's bodies run, with local bytes."""
    found: list[Collective] = []
    for axis, chosen in strategy.axes:
        if chosen.body in BODIES and mesh.size(axis) > 1:
            shape = local_shape(operator.operands[0], [(a, s.inputs[0]) for a, s in strategy.axes], mesh)
            found += BODIES[chosen.body](operator, shape, axis)
    return tuple(found)
