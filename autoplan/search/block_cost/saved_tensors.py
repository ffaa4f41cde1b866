"""What one block keeps from its forward for its backward: all that autograd keeps, or what is dear to compute.

A segment that recomputes selectively keeps its input, the results of products, convolutions and attention
(``DEAR``), and the results of collectives, so that none is repeated; the cheap rest, elementwise operators, norms and
reshapes, runs again in the backward. It is torch's selective activation checkpointing
(``torch.utils.checkpoint.create_selective_checkpoint_contexts``) under the policy of
``autoplan.runtime.memory.selective``, which keeps what those operators return whether or not the backward reads it: so
it is priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplan.cost import Operator, Prices
from autoplan.cost.operators.collective_ops import body_collectives
from autoplan.cost.operators.operator import ROUTED
from autoplan.cost.prices import layout_bytes
from autoplan.ir.choice import BlockChoice, Hop
from autoplan.ir.graph import Block, TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy

DEAR = ("matmul", "attention", "experts")
"""Kinds of operators (``Rule.cost``) whose results are kept."""

Located = tuple[str, Layout]  # a value, and the layout in which it is held


@dataclass(frozen=True)
class SelectiveSaves:
    """A segment that recomputes selectively, in one microbatch on one device.

    kept_bytes     kept from the forward for the backward, its input included
    rebuilt_bytes  of what autograd keeps where nothing is recomputed, what is not among them: it stands beside them
                   while the segment's backward runs
    again_s        of what runs again in the backward
    """

    kept_bytes: int = 0
    rebuilt_bytes: int = 0
    again_s: float = 0.0


def kept_bytes(
    choice: BlockChoice, operators: Mapping[str, Operator], types: Mapping[str, TensorType], mesh: Mesh
) -> int:
    """Bytes kept for the backward: each value once in each layout in which someone keeps it, and masks beside them."""
    extra = sum(mask_bytes(operators[name], strategy, types, mesh) for name, strategy in choice.strategies)
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


def mask_bytes(operator: Operator, strategy: Strategy, types: Mapping[str, TensorType], mesh: Mesh) -> float:
    """What an operator keeps beside its operands and its result."""
    if not operator.result_carries or not operator.rule.saved_bytes_per_element:
        return 0.0
    kind = types[operator.node.name]
    local = layout_bytes(kind, strategy.output(len(kind.shape), mesh), mesh)
    return operator.rule.saved_bytes_per_element * (local // max(kind.bytes // max(kind.elements, 1), 1))


def values_bytes(values: Iterable[Located], types: Mapping[str, TensorType], mesh: Mesh) -> int:
    return sum(layout_bytes(types[value], layout, mesh) for value, layout in values)


def price_selective(
    block: Block,
    choice: BlockChoice,
    operators: Mapping[str, Operator],
    prices: Prices,
    alone_s: Mapping[str, float],
) -> SelectiveSaves:
    """A block under selective recomputation, from the prices of its operators and redistributions.

    alone_s  forward seconds of each operator, the collectives of its body aside
    """
    mesh, types, carries = prices.mesh, block.types(), block.carries_gradient()
    kept = {(v.name, x) for v, x in zip(block.inputs, choice.inputs, strict=True)}
    extra, masks, again_s = 0.0, 0.0, 0.0
    for name, strategy in choice.strategies:
        operator = operators[name]
        mask = mask_bytes(operator, strategy, types, mesh)
        inside = body_collectives(operator, strategy, mesh)
        extra += sum(step.forward_bytes for step in inside if step.op != ROUTED)  # one operator, of which nothing shows
        if operator.rule.cost in DEAR:
            kept.add((name, strategy.output(len(types[name].shape), mesh)))
            extra += mask
        else:
            masks += mask
            again_s += alone_s[name]
    for hop in choice.hops:
        arrived, between, copies_s = price_hop(hop, types[hop.value], hop.value in carries, prices)
        kept |= arrived
        extra += between
        again_s += copies_s
    rebuilt = kept_values(choice, operators, types, mesh) - kept
    return SelectiveSaves(
        round(values_bytes(kept, types, mesh) + extra), round(values_bytes(rebuilt, types, mesh) + masks), again_s
    )


def price_hop(hop: Hop, kind: TensorType, carries: bool, prices: Prices) -> tuple[set[Located], int, float]:
    """(where it arrives by a collective, bytes that other collectives on the way return, seconds of its copies)."""
    found = prices.move(kind, hop.source, hop.target, carries)
    assert found is not None, f"{hop.value} can't go from {hop.source} to {hop.target}"
    steps = found[1]
    crossing = [step for step in steps if step.forward]
    last = bool(steps) and bool(steps[-1].forward)
    local = layout_bytes(kind, hop.target, prices.mesh)
    copies_s = sum(prices.step(step, carries, local, kind).forward_s for step in steps if not step.forward)
    between = sum(step.forward_bytes for step in (crossing[:-1] if last else crossing))
    return ({(hop.value, hop.target)} if last else set()), between, copies_s
