"""Each operator's options on a mesh: its strategies on the tensor axis, the batch's axes being pinned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from autoplan.cost import Prices, weights_of
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Node
from autoplan.ir.layout import S
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.rules.constraints import permitted
from autoplan.rules.strategies import Strategy, strategies
from autoplan.search.intra_op.problem_inputs import OperatorInputs, Options, Prepared
from autoplan.search.intra_op.shared_decisions import OperatorKey
from autoplan.search.space.tensor_axes import NO_ROLE, LayoutRequirements, Role, System, routers, splitting

SplitSizes = frozenset[tuple[int, frozenset[str]]]
"""Sizes, each with the batch's axes that split it."""


def formulate(
    prepared: Prepared,
    mesh: Mesh,
    prices: Prices,
    *,
    split_weights: bool,
    sequence: bool | None = None,
    system: System | None = None,
    free: str = "",
    options: Options | None = None,
    strict: bool = True,
) -> OperatorInputs:
    """The operator problem's parts on one mesh; fields as of ``OperatorInputs``.

    split_weights  matmuls must split a weight on every tensor axis where sizes allow: what a pinned ``tp`` asks for;
                   not an experts' router (``routers``)
    system         asks that all tensor axes have several members
    options        those of another mesh on which the same divides (``divisibility``)
    """
    if system is not None:
        system.check(prepared.model, prepared.operators, mesh)
    found = options or _Finder(prepared, mesh, split_weights, system, free).options()
    return OperatorInputs(prepared, mesh, found, prices, sequence, system, free, strict)


def split_sizes(prepared: Prepared) -> SplitSizes:
    """Of every dim of a value, and of every factor of an operator."""
    found = set()
    for index, block in enumerate(prepared.model.blocks):
        for name, kind in block.types().items():
            states = {axis: split.states[index, name] for axis, split in prepared.batch.items()}
            for dim, size in enumerate(kind.shape):
                found.add((size, frozenset(axis for axis, state in states.items() if state == S(dim))))
        for name, operator in prepared.operators[index].items():
            chosen = {axis: split.strategies[index, name] for axis, split in prepared.batch.items()}
            for factor, size in operator.sizes.items():
                found.add((size, frozenset(axis for axis, way in chosen.items() if way.factor == factor)))
    return frozenset(found)


def divisibility(sizes: SplitSizes, mesh: Mesh) -> tuple[bool, ...] | None:
    """Which sizes each product of tensor axes divides: on meshes for which this is the same every operator has the same
    strategies and every value the same layouts. None where the batch's own axes don't divide what they split."""
    local = []
    for size, axes in sorted(sizes, key=lambda pair: (pair[0], sorted(pair[1]))):
        ways = math.prod(mesh.size(axis) for axis in axes)
        if size % ways:
            return None
        local.append(size // ways)
    tensor = [mesh.size(axis) for axis in mesh.operator_axes]
    together = [math.prod(some) for count in range(len(tensor)) for some in itertools.combinations(tensor, count + 1)]
    return tuple(size % ways == 0 for size in local for ways in together)


class _Finder:
    """Finds the strategies of every operator; those that are alike, under the same pins, once."""

    def __init__(self, prepared: Prepared, mesh: Mesh, split_weights: bool, system: System | None, free: str) -> None:
        self.prepared, self.mesh, self.split_weights, self.system = prepared, mesh, split_weights, system
        self.batch = {axis: split for axis, split in prepared.batch.items() if axis != free}
        self.known: dict[tuple, tuple[Strategy, ...]] = {}
        self.roles: Mapping[OperatorKey, Role] = {}  # what certain operators are to the system
        if system is not None:
            self.roles = system.special(prepared.model, prepared.operators)

    def options(self) -> Options:
        found = {}
        for index, block in enumerate(self.prepared.model.blocks):
            weights = weights_of(block)
            unsplit = routers(block, self.prepared.operators[index]) if self.split_weights else None
            for node in block.nodes:
                found[index, node.name] = self.strategies(index, node, weights, unsplit)
        return found

    def strategies(
        self, index: int, node: Node, weights: frozenset[str], unsplit: frozenset[str] | None
    ) -> tuple[Strategy, ...]:
        """unsplit: operators that needn't split a weight, where the others must; None where none has to."""
        here, mesh, system = (index, node.name), self.mesh, self.system
        operator = self.prepared.operators[index][node.name]
        pinned = {axis: split.strategies[here] for axis, split in self.batch.items()}
        pinned |= {axis: pinned["dp"] for axis in system.whole} if system is not None else {}
        key = (self.prepared.alike.get(here, here), tuple(pinned.items()))
        if key not in self.known:
            self.known[key] = strategies(operator.rule, operator.operands, node.type, operator.carries, mesh, pinned)
        found = self.known[key]
        if not found:
            raise ParallelismError(
                f"mesh {mesh}",
                f"the rows of {node.name} ({node.op}, result {node.type.shape}) don't divide by dp={mesh.size('dp')} "
                f"and {mesh.size(MICROBATCH)} microbatches",
                "give a batch that does, or pin a smaller dp or a smaller micro_batch",
            )
        if mesh.operator_ways == 1:
            return found
        found = permitted(self.prepared.constraints, node, found)
        if system is not None:
            rows = self.batch["dp"].strategies[here].factor if "dp" in self.batch else ""
            splits = unsplit is not None and node.name not in unsplit
            role = self.roles.get(here, NO_ROLE)
            asked = LayoutRequirements(operator, weights, mesh, rows, role, splits)
            return system.ways(asked, found)
        if unsplit is None or node.name in unsplit:
            return found
        wide = [axis for axis in mesh.operator_axes if mesh.size(axis) > 1]
        return splitting(operator, weights, found, wide)
