"""The collectives inside the bodies that run in place of an operator, by the body's name."""

import math
from collections.abc import Callable, Iterator, Mapping

from autoplan.cost.operators.lookups import PLACED
from autoplan.cost.operators.operator_seconds import (
    RING,
    Operator,
    local_shape,
    lookups_of,
    ring_of,
    travel_of,
)
from autoplan.ir.graph import DTYPE_BYTES
from autoplan.ir.layout import State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.steps import find_step
from autoplan.rules.nn.expert_capacity import ROUTED
from autoplan.rules.nn.windows import windows_of
from autoplan.rules.strategies import Strategy

FLOAT32_BYTES = 4  # statistics are reduced in float32
PADDED = "padded_experts"  # an op: tokens to their experts, as many as these have a capacity for
SEND, TO_ENDS = "send", "to_either_end"  # a kind of collective; an op
HALO = "with_halo"
WINDOWED = ("convolution_along", "max_pool_along", "avg_pool_along")  # how the bodies' names begin


def cross_entropy(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """For each row the greatest logit; then in one the sum of exponentials, the target's logit and, where labels are
    smoothed, the sum of all logits. Nothing backward."""
    rows = math.prod(shape[:-1]) * max(FLOAT32_BYTES, DTYPE_BYTES[operator.operands[0].dtype])
    args, place = operator.node.args, 5 if operator.node.op == "autoplan.weighted_cross_entropy" else 4
    smooths = dict(operator.node.kwargs).get("label_smoothing", args[place] if len(args) > place else 0.0)
    sums = 3 if smooths else 2
    return (
        Collective("all_reduce_max", (axis,), (), "all-reduce", "", rows, 0),
        Collective("all_reduce", (axis,), (), "all-reduce", "", sums * rows, 0),
    )


def batch_norm(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """Two sums for each channel, forward and backward."""
    sums = 2 * shape[1] * FLOAT32_BYTES
    return (Collective("all_reduce", (axis,), (), "all-reduce", "all-reduce", sums, sums),)


def moved(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """The step between two states, there and back; of a gather its result counts."""
    before, after = (State.parse(str(state)) for state in operator.node.args[1:3])
    step = find_step(before, after, operator.carries[0])
    if step is None or not (step.forward or step.backward):
        return ()
    gathers = before.kind == "S" != after.kind
    parts = operator.operands[0].shape[before.dim] // shape[before.dim] if gathers else 1
    size = parts * math.prod(shape) * DTYPE_BYTES[operator.node.type.dtype]
    return (Collective(step.op, (axis,), (), step.forward, step.backward, size, size),)


def scan(operator: Operator, shape: list[int], axis: str) -> tuple[Collective, ...]:
    """Every part's total, gathered; backward their gradients, summed onto the rank that has the part."""
    dim = scanned_dim(operator)
    parts = operator.operands[0].shape[dim] // shape[dim]
    size = parts * math.prod(shape) // shape[dim] * DTYPE_BYTES[operator.node.type.dtype]
    return (Collective("all_gather", (axis,), (), "all-gather", "reduce-scatter", size, size),)


def scanned_dim(operator: Operator) -> int:
    dim = operator.node.args[1]
    assert isinstance(dim, int)
    return dim


BODIES: Mapping[str, Callable[[Operator, list[int], str], tuple[Collective, ...]]] = {
    "vocab_parallel_cross_entropy": cross_entropy,
    "vocab_parallel_weighted_cross_entropy": cross_entropy,
    "sync_batch_norm": batch_norm,
    "batch_move": moved,
    "split_cumsum": scan,
    "split_cumprod": scan,
    "split_logcumsumexp": scan,
}


def ring(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Collective, ...]:
    """Sends of keys and values, and of their gradients after them, each the bytes of all steps; where the ring is
    balanced, what goes to either end of the sequence and back."""
    found, axes = ring_of(operator, strategy, mesh, True), tuple(a for a, s in strategy.axes if s.body == RING)
    if found is None:
        return ()
    parts = (found.ways - 1) * found.part_bytes
    sends = [Collective(RING, axes, (), SEND, SEND, parts, parts + found.ways * found.gradient_bytes)]
    if found.balanced:
        sends.append(Collective(TO_ENDS, axes, (), SEND, SEND, *found.exchanged_bytes))
    return tuple(sends)


def routed(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Collective, ...]:
    """Counts, where they aren't known, tokens there and results back; backward gradients there and back. The bytes are
    those of the rank that receives most."""
    found, axes = travel_of(operator, strategy, mesh), tuple(a for a, s in strategy.axes if s.body == ROUTED)
    if found is None:
        return ()
    there, result, gradient, kind = found.there_bytes, found.result_bytes, found.gradient_bytes, "all-to-all"
    op = PADDED if found.sent else ROUTED
    tokens = Collective(op, axes, (), kind, kind, there, gradient, chunks=found.chunks)
    results = Collective(op, axes, (), kind, kind, result, result, chunks=found.chunks)
    counts = (Collective(op, axes, (), kind, "", found.counts_bytes, 0),) if found.counts_bytes else ()
    return (*counts, tokens, results)


def placed(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Collective, ...]:
    """Indices to where tables are, vectors back, and their gradients there; the bytes are those of the rank that sends
    or receives most."""
    axes = tuple(a for a, s in strategy.axes if s.body == PLACED)
    if not axes:
        return ()
    found, kind = lookups_of(operator, strategy, mesh), "all-to-all"
    return (
        Collective(PLACED, axes, (), kind, "", found.index_bytes, 0),
        Collective(PLACED, axes, (), kind, kind, found.vector_bytes, found.vector_bytes),
    )


def halos(operator: Operator, strategy: Strategy, mesh: Mesh) -> Iterator[Collective]:
    """What windows see of the neighbours' parts, and its gradients back: to either side at once."""
    for axis, chosen in strategy.axes:
        if chosen.body.startswith(WINDOWED) and mesh.size(axis) > 1:
            dim = chosen.output.dim
            shape = local_shape(operator.operands[0], [(a, s.inputs[0]) for a, s in strategy.axes], mesh)
            row = math.prod(shape) // shape[dim] * DTYPE_BYTES[operator.operands[0].dtype]
            size = row * windows_of(operator.node, operator.operands)[dim - 2].halo
            yield Collective(HALO, (axis,), (), SEND, SEND, size, size)


def body_collectives(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Collective, ...]:
    """Every collective that an operator's bodies run, with local bytes."""
    found = [each for of in (ring, routed, placed, halos) for each in of(operator, strategy, mesh)]
    for axis, chosen in strategy.axes:
        if chosen.body in BODIES and mesh.size(axis) > 1 and not mesh.axis(axis).virtual:
            shape = local_shape(operator.operands[0], [(a, s.inputs[0]) for a, s in strategy.axes], mesh)
            found += BODIES[chosen.body](operator, shape, axis)
    return tuple(found)
