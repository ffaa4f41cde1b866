"""Runs a graph.Model on one device, operator by operator: what its nodes mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from autoplan.ir.graph import Argument, DType, Model, Node, Parameter, Ref
from autoplan.runtime import ops

Values = dict[str, Tensor]


def count_valid(target: Tensor, ignore_index: int) -> Tensor:
    return (target != ignore_index).sum()


def cross_entropy(logits: Tensor, target: Tensor, count: Tensor, ignore_index: int, smoothing: float) -> Tensor:
    flat = logits.flatten(0, -2), target.flatten()
    return F.cross_entropy(*flat, ignore_index=ignore_index, label_smoothing=smoothing, reduction="sum") / count


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    tracked: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    if tracked is not None:
        tracked.add_(1)
    return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "autoplan.count_valid": count_valid,
    "autoplan.cross_entropy": cross_entropy,
    "autoplan.count_classes": ops.count_classes,
    "autoplan.ctc_losses": ops.ctc_losses,
    "autoplan.weighted_cross_entropy": ops.weighted_cross_entropy,
    "autoplan.batch_norm": batch_norm,
    "autoplan.read_buffer": ops.read_buffer,
    "autoplan.update_buffer": ops.update_buffer,
    "autoplan.embedding_bag": ops.embedding_bag,
    "autoplan.ragged_bag": ops.ragged_bag,
    "autoplan.lookups": ops.lookups,
    "autoplan.recurrence": ops.recurrence,
    "autoplan.decomposed": ops.decomposed,
    **{f"autoplan.{name}": getattr(ops, name) for name in ("experts", "top_indices", "scattered", "within_capacity")},
    "autoplan.dropout": lambda x, p: F.dropout(x, p),
    "autoplan.uniform": lambda x, number: torch.rand_like(x),
}


def operator_of(op: str) -> Callable[..., Tensor]:
    if op in OPERATORS:
        return OPERATORS[op]
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def run_node(node: Node, values: Mapping[str, Tensor]) -> Tensor:
    """One operator; what it gives has to be of the type that the node states."""

    def real(argument: Argument) -> object:
        if isinstance(argument, Ref):
            return values[argument.name]
        if isinstance(argument, DType):
            return getattr(torch, argument.name)
        return [real(item) for item in argument] if isinstance(argument, tuple) else argument

    result = operator_of(node.op)(*map(real, node.args), **{key: real(value) for key, value in node.kwargs})
    assert (tuple(result.shape), str(result.dtype)) == (node.type.shape, f"torch.{node.type.dtype}"), node
    return result


def piece_of(parameter: Parameter, whole: Tensor) -> Tensor:
    if parameter.source == parameter.name:
        return whole
    return whole.narrow(parameter.dim, parameter.start, parameter.stop - parameter.start)


def interpret(model: Model, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
    """The model's result. ``state`` holds parameters and buffers under the user's names; buffers are updated."""
    outside: Values = {**batch, **{b.name: state[b.name] for b in model.buffers}}
    outside |= {p.name: piece_of(p, state[p.source]) for p in model.parameters}
    for node in model.constants:
        outside[node.name] = run_node(node, outside)
    carried: Sequence[Tensor] = ()
    for segment in model.segments:
        block = model.blocks[segment.block]
        values: Values = dict(zip((v.name for v in block.inputs), carried, strict=True))
        for local, names in (
            (block.parameters, segment.parameters),
            (block.buffers, segment.buffers),
            (block.externals, segment.externals),
        ):
            values |= {v.name: outside[name] for v, name in zip(local, names, strict=True)}
        for node in block.nodes:
            values[node.name] = run_node(node, values)
        carried = [values[name] for name in block.outputs]
    (result,) = carried
    return result
