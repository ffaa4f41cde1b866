"""What each operator of a model may do on a mesh: its strategies on the tensor axis, the batch's axes being pinned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoplan.cost import Operator, Prices, operators_of, weights_of
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Block, Model, Node
from autoplan.ir.layout import R, S, State
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.rules.constraints import Constraint, permitted
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy, strategies
from autoplan.search.intra_op.classes import Classes, OperatorKey, alike_operators, classes_of
from autoplan.search.intra_op.inputs import Formulation
from autoplan.search.space.batch_axes import BatchSplit, split_batch
from autoplan.search.space.tensor_axes import Asked, System, routers, splitting

Options = Mapping[tuple[int, str], tuple[Strategy, ...]]
"""The strategies of every node, by (block, name)."""

Known = dict[tuple, tuple[Strategy, ...]]
"""The strategies of operators that are alike, under the same pins."""

SplitSizes = frozenset[tuple[int, frozenset[str]]]
"""Sizes, each with the batch's axes that split it."""


@dataclass(frozen=True)
class Prepared:
    """A model with all that doesn't depend on the mesh's sizes.

    operators  of each block, by name
    batch      how the batch lies on each of its axes
    constraints  what the user rules out
    alike      of each operator, the first that may be split as it may, by (block, name)
    """

    model: Model
    operators: tuple[Mapping[str, Operator], ...]
    batch: Mapping[str, BatchSplit]
    constraints: tuple[Constraint, ...]
    training: bool
    alike: Mapping[OperatorKey, OperatorKey] = field(default_factory=dict)

    @cached_property
    def classes(self) -> Classes:
        return classes_of(self.model)

    def whole(self, node: Node) -> AxisStrategy:
        """A constant on an axis that doesn't split the batch: whole on every rank."""
        return AxisStrategy(tuple(R for _ in node.operands), R)


def prepare(model: Model, constraints: Sequence[Constraint], *, fuses: bool, training: bool) -> Prepared:
    operators = tuple(operators_of(block, fuses=fuses) for block in model.blocks)
    batch = {
        "dp": split_batch(model, virtual=False, loss=training),
        MICROBATCH: split_batch(model, virtual=True, loss=training),
    }
    return Prepared(model, operators, batch, tuple(constraints), training, alike_operators(operators))


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
) -> Formulation:
    """The operator problem's parts on one mesh (without the pipeline's axis).

    split_weights  matmuls must split a weight on every tensor axis where sizes allow: what a pinned ``tp`` asks for;
                   not an experts' router (``routers``)
    sequence       whether activations between segments are split along the sequence; None: whatever is cheaper
    system         a named system on the tensor axes, all of which have several members
    free           an axis of the batch that is searched like a tensor axis, whatever the batch does; "" for none
    options        those of another mesh on which the same divides (``divisibility``)
    """
    batch, classes = prepared.batch, prepared.classes
    prepared = replace(prepared, batch={axis: split for axis, split in batch.items() if axis != free})
    known: Known = {}
    roles: Mapping[tuple[int, str], str] = {}
    if system is not None:
        system.check(prepared.model, prepared.operators, mesh)
        roles = system.special(prepared.model, prepared.operators)
    unsplit = [
        routers(block, operators) if split_weights else None
        for block, operators in zip(prepared.model.blocks, prepared.operators, strict=True)
    ]
    options = options or {
        (index, node.name): node_options(prepared, index, block, node, mesh, unsplit[index], system, known, roles)
        for index, block in enumerate(prepared.model.blocks)
        for node in block.nodes
    }

    def states(index: int, name: str) -> Mapping[str, State]:
        return {axis: split.states[index, name] for axis, split in prepared.batch.items()}

    def entering(index: int, name: str) -> Mapping[str, State]:
        return {free: batch[free].states[index, name]} if free else {}

    return Formulation(
        prepared.model,
        mesh,
        prepared.operators,
        options,
        classes,
        states,
        prices,
        searched=(*((free,) if free else ()), *mesh.tensor_axes),
        training=prepared.training,
        sequence=sequence,
        system=system,
        entering=entering,
        alike=prepared.alike,
    )


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
    tensor = [mesh.size(axis) for axis in mesh.tensor_axes]
    together = [math.prod(some) for count in range(len(tensor)) for some in itertools.combinations(tensor, count + 1)]
    return tuple(size % ways == 0 for size in local for ways in together)


def node_options(
    prepared: Prepared,
    index: int,
    block: Block,
    node: Node,
    mesh: Mesh,
    unsplit: frozenset[str] | None,
    system: System | None,
    known: Known,
    roles: Mapping[tuple[int, str], str],
) -> tuple[Strategy, ...]:
    """The strategies of one operator.

    unsplit  operators that needn't split a weight, where the others must; None where none has to
    known    those of others on the same mesh
    roles    what certain ones are to the system
    """
    operator = prepared.operators[index][node.name]
    pinned = {axis: split.strategies[index, node.name] for axis, split in prepared.batch.items()}
    pinned |= {axis: pinned["dp"] for axis in system.whole} if system is not None else {}
    here = (index, node.name)
    key = (prepared.alike.get(here, here), tuple(pinned.items()))
    if key not in known:
        known[key] = strategies(operator.rule, operator.operands, node.type, operator.carries, mesh, pinned)
    found = known[key]
    if not found:
        raise ParallelismError(
            f"mesh {mesh}",
            f"the rows of {node.name} ({node.op}, result {node.type.shape}) don't divide by dp={mesh.size('dp')} and "
            f"{mesh.size(MICROBATCH)} microbatches",
            "give a batch that does, or pin a smaller dp or a smaller micro_batch",
        )
    if mesh.tensor_size == 1:
        return found
    found = permitted(prepared.constraints, node, found)
    if system is not None:
        rows = prepared.batch["dp"].strategies[here].factor if "dp" in prepared.batch else ""
        return system.ways(Asked(operator, weights_of(block), mesh, rows, roles.get(here, "")), found)
    if unsplit is None or node.name in unsplit:
        return found
    return splitting(operator, weights_of(block), found, [axis for axis in mesh.tensor_axes if mesh.size(axis) > 1])
