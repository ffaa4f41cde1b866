"""Redistributions beside a product that may be cut into chunks, so that one is sent while another is multiplied.

What is gathered for column-parallel products alone (S -> R) is multiplied chunk by chunk as it comes. What a
row-parallel product gives (P -> S by a reduce-scatter, P -> I by an all-reduce) is sent chunk by chunk as it is
multiplied. ``Collective.chunks`` says so, and ``runtime.ops.chunked_linear`` runs it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.errors import LayoutError
from autoplan.ir.choice import BlockChoice, Hop
from autoplan.ir.graph import Block, Node, Ref, TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective, Compute, LoweredBlock, Move
from autoplan.redistribution.hidden import PRODUCTS, hidden_hops, is_plain, is_product

GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
SUMS = (SCATTER, REDUCE)
"""Steps that a row-parallel product's result takes."""


def rows_of(step: Collective, kind: TensorType, source: Layout, target: Layout, mesh: Mesh) -> int:
    """Rows of a rank that chunks are cut from; 1 where a step can't be cut."""
    if not kind.floating or kind.dtype.startswith("complex") or len(kind.shape) < 2:
        return 1
    if step.op == REDUCE:
        return math.prod(target.local_shape(kind.shape, mesh)[:-1])
    if step.op not in (GATHER, SCATTER) or step.dims[0] == len(kind.shape) - 1:
        return 1
    part = source if step.op == GATHER else target
    return part.local_shape(kind.shape, mesh)[step.dims[0]]


def products_beside(block: Block, choice: BlockChoice, mesh: Mesh) -> dict[int, tuple[Node, ...]]:
    """Of the hops of a choice, by their numbers, those that may be cut, and the products beside which they run."""
    found = {n: nodes for n, nodes in hidden_hops(block, choice, mesh).items() if op_of(choice.hops[n]) == GATHER}
    made = {node.name: node for node in row_products(block)}
    for number, hop in enumerate(choice.hops):
        if hop.value in made and op_of(hop) in SUMS and taken_alone(block, choice, mesh, hop):
            found[number] = (made[hop.value],)
    return found


def op_of(hop: Hop) -> str:
    """The one step of a hop."""
    steps = hop.steps or ()
    return steps[0].op if len(steps) == 1 else ""


def chunks_of(hop: Hop) -> int:
    """Into how many its one step is cut."""
    steps = hop.steps or ()
    return steps[0].chunks if len(steps) == 1 else 1


def row_products(block: Block) -> list[Node]:
    """Products with a parameter that nothing else reads."""
    matrices = {p.name for p in block.parameters if len(p.type.shape) == 2}
    return [node for node in block.nodes if is_product(node, matrices)]


def taken_alone(block: Block, choice: BlockChoice, mesh: Mesh, hop: Hop) -> bool:
    """Whether nothing but this hop reads what a plain product gives."""
    strategies, types, met = dict(choice.strategies), block.types(), dict(choice.parameters)
    node = next(node for node in block.nodes if node.name == hop.value)
    strategy, rank = strategies[hop.value], len(types[hop.value].shape)
    if strategy.output(rank, mesh) != hop.source or not is_plain(strategy):
        return False
    if strategy.input(1, 2, mesh) != met[node.operands[1]]:
        return False
    readers = [
        strategies[other.name].input(place, rank, mesh)
        for other in block.nodes for place, name in enumerate(other.operands) if name == hop.value
    ]  # fmt: skip
    leaving = [layout for name, layout in zip(block.outputs, choice.outputs, strict=True) if name == hop.value]
    others = [each.source for each in choice.hops if each.value == hop.value and each != hop]
    return hop.source not in (*readers, *leaving, *others)


def cut(hop: Hop, chunks: int) -> Hop:
    """The same in chunks."""
    return replace(hop, steps=tuple(replace(step, chunks=chunks) for step in hop.steps or ()))


def chunked_sums(block: LoweredBlock) -> dict[str, tuple[Compute, Move]]:
    """The row-parallel products of a lowered block that run in chunks with what follows them, by the latter's value."""
    made = {s.value.name: s for s in block.body if isinstance(s, Compute) and is_row_product(s)}
    moves = [s for s in block.body if isinstance(s, Move) and s.source in made and s.value.name not in block.again]
    cut = [move for move in moves if is_cut(move) and move.collectives[0].op in SUMS]
    return {move.value.name: (made[move.source], move) for move in cut}


def is_row_product(compute: Compute) -> bool:
    plain = compute.op in PRODUCTS and not compute.kwargs and not compute.body and compute.divisor == 1
    return plain and [type(arg) for arg in compute.args] == [Ref, Ref]


def is_cut(move: Move) -> bool:
    return any(step.chunks > 1 for step in move.collectives)


def check_cut(block: LoweredBlock) -> None:
    """LayoutError where a redistribution is said to be in chunks that no product runs beside."""
    beside = {*chunked_sums(block), *(moved for moved, _ in block.hidden)}
    for move in block.body:
        if isinstance(move, Move) and is_cut(move) and move.value.name not in beside:
            cause = f"{move.value.name} is cut into chunks, and no product runs beside them"
            raise LayoutError(f"{block.name}: {move.source} redistributed", cause, "plan again, or undo the edit")
