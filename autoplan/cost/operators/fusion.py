"""Which operators of a compiled block run as one kernel: what passes between them is neither written nor read.

A kernel is a chain of memory-bound operators over the same elements: elementwise ones, reductions of what they give,
and users of what reductions gave, as in a norm. It reads each value from memory once, whichever of its operators use
it, and writes those that are used beyond it.

Nothing on the way from one operator of a kernel to another may lie outside, for a kernel can't wait in its middle for a
matmul. So each value has a depth, the most borders between kernels on any way to it: along an edge that could be fused
it stays or grows, along any other it grows. Edges that could be fused between values of one depth are fused.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autoplan.ir.graph import Block, Node, TensorType
from autoplan.rules.registry import Rule

Value = TypeVar("Value", bound=Hashable)

GATHERING = (
    "aten.embedding.default", "aten.index.Tensor", "aten.gather.default", "aten.index_select.default",
    "autoplan.embedding_bag", "autoplan.ragged_bag",
)  # fmt: skip
"""Operators that read of their first operand only what they return."""


@dataclass(frozen=True)
class Traffic:
    """What goes to memory and what comes from it.

    inside   names of results that no operator beyond their kernel uses: they are not written
    reads    for each node, whether it reads each operand from memory
    kernels  of each node the kernel, under the name of one of its nodes
    """

    inside: frozenset[str]
    reads: Mapping[str, tuple[bool, ...]]
    kernels: Mapping[str, str]


def apart(block: Block) -> Traffic:
    """Each operator for itself, as in eager mode."""
    reads = {node.name: tuple(True for _ in node.operands) for node in block.nodes}
    return Traffic(frozenset(), reads, {node.name: node.name for node in block.nodes})


def fused(block: Block, rules: Mapping[str, Rule]) -> Traffic:
    """The traffic of a compiled block."""
    kernels = kernels_of(block, rules)
    users: dict[str, list[str]] = {}
    for node in block.nodes:
        for name in node.operands:
            users.setdefault(name, []).append(node.name)
    inside = frozenset(
        name
        for name, kernel in kernels.items()
        if name in users and name not in block.outputs and all(kernels.get(user) == kernel for user in users[name])
    )
    return Traffic(inside, reads_of(block, kernels), {node.name: node.name for node in block.nodes} | kernels)


def kernels_of(block: Block, rules: Mapping[str, Rule]) -> dict[str, str]:
    """For each memory-bound operator its kernel, under the name of one of its operators."""
    types = block.types()
    works = {node.name: worked_on(node, types) for node in block.nodes if joins(node, rules[node.name])}
    return joined_by_depth({node.name: node.operands for node in block.nodes}, works)


def joined_by_depth(follows: Mapping[Value, Sequence[Value]], works: Mapping[Value, int]) -> dict[Value, Value]:
    """For each operator that may be fused its kernel, under the name of one of them.

    follows  of each operator, in order, those whose results it reads
    works    elements that those go over that may be fused
    """
    depth: dict[Value, int] = {}
    joined: dict[Value, Value] = {}  # of each operator a later one of its kernel; the last one is its own

    def kernel(name: Value) -> Value:
        while joined[name] != name:
            joined[name] = joined[joined[name]]
            name = joined[name]
        return name

    for name, operands in follows.items():
        work = works.get(name)
        like = {other for other in operands if work is not None and works.get(other) == work}
        depth[name] = max((depth.get(other, 0) + (other not in like) for other in operands), default=0)
        if work is None:
            continue
        joined[name] = name
        for other in like:
            if depth[other] == depth[name]:
                joined[kernel(other)] = name
    return {name: kernel(name) for name in joined}


def joins(node: Node, rule: Rule) -> bool:
    """Whether an operator may be part of a kernel with others."""
    return rule.cost == "memory" and node.op not in GATHERING


def worked_on(node: Node, types: Mapping[str, TensorType]) -> int:
    """Elements that an operator goes over: its result's, or those that it reduces to it."""
    return max(math.prod(kind.shape) for kind in (node.type, *(types[name] for name in node.operands)))


def reads_of(block: Block, kernels: Mapping[str, str]) -> dict[str, tuple[bool, ...]]:
    """What was made in a kernel, or read by an operator of it before, isn't read from memory again."""
    at_hand: set[tuple[str, str]] = set()
    reads = {}
    for node in block.nodes:
        kernel = kernels.get(node.name, "")
        reads[node.name] = tuple(not kernel or (kernel, name) not in at_hand for name in node.operands)
        if kernel:
            at_hand |= {(kernel, name) for name in (*node.operands, node.name)}
    return reads
