"""What an operator problem is made of: a model on a mesh, its operators' options, and a price list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.cost import Operator, Prices, operators_of
from autoplan.cost.operators.sparse_rows import is_sparse
from autoplan.ir.graph import Model, Node, TensorType
from autoplan.ir.layout import R, State
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.tables import CACHED
from autoplan.rules.constraints import Constraint
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.shared_decisions import Classes, OperatorKey, alike_operators, classes_of
from autoplan.search.space.batch_axes import BatchSplit, split_batch
from autoplan.search.space.tensor_axes import System

SEQUENCE = 1  # the dim of an activation [batch, sequence, features]

Options = Mapping[OperatorKey, tuple[Strategy, ...]]
"""The strategies of every node, by (block, name)."""


@dataclass(frozen=True)
class Prepared:
    """A model with all that doesn't depend on the mesh's sizes.

    operators    of each block, by name
    batch        how the batch lies on each of its axes
    constraints  what the user rules out
    alike        of an operator, by (block, name), the first that may be split, and costs, as it does
    """

    model: Model
    operators: tuple[Mapping[str, Operator], ...]
    batch: Mapping[str, BatchSplit]
    constraints: tuple[Constraint, ...]
    training: bool
    alike: Mapping[OperatorKey, OperatorKey] = field(default_factory=dict)

    @cached_property
    def classes(self) -> Classes:
        """Decisions that several places share."""
        return classes_of(self.model)

    @property
    def many(self) -> int:
        """Operators of all blocks."""
        return sum(len(own) for own in self.operators)

    @cached_property
    def by_rows(self) -> tuple[Operator, ...]:
        """Look-ups in tables whose gradients are of looked-up rows alone."""
        return tuple(each for own in self.operators for each in own.values() if is_sparse(each.node))

    @property
    def caches_tables(self) -> bool:
        """Whether tables lie off the devices, so that their bytes aren't those of the parameter that they are."""
        return any(dict(each.node.kwargs).get(CACHED) for each in self.by_rows)

    def whole(self, node: Node) -> AxisStrategy:
        """A constant on an axis that doesn't split the batch: whole on every rank."""
        return AxisStrategy(tuple(R for _ in node.operands), R)


def prepare(
    model: Model, constraints: Sequence[Constraint], *, fuses: bool, training: bool, apart: bool = False
) -> Prepared:
    """apart: each microbatch has its own statistics"""
    operators = tuple(operators_of(block, fuses=fuses) for block in model.blocks)
    batch = {
        "dp": split_batch(model, virtual=False, loss=training),
        MICROBATCH: split_batch(model, virtual=True, loss=training, apart=apart),
    }
    return Prepared(model, operators, batch, tuple(constraints), training, alike_operators(operators))


@dataclass(frozen=True)
class OperatorInputs:
    """All that a problem is made of.

    mesh      without the pipeline's axis
    options   what each operator may do (``options``)
    prices    seconds are of one microbatch, forward and backward
    sequence  whether activations between the tensor-parallel operators are split along the sequence; None: whatever is
              cheaper
    strict    what ``sequence`` says holds inside blocks, too (``stream_step``); else of what goes between blocks alone
    system    what a named system asks of the tensor axes
    free      an axis of the batch that is searched like a tensor axis, whatever the batch does; "" for none
    """

    prepared: Prepared
    mesh: Mesh
    options: Options
    prices: Prices
    sequence: bool | None = None
    system: System | None = None
    free: str = ""
    strict: bool = True

    @property
    def model(self) -> Model:
        return self.prepared.model

    @property
    def operators(self) -> tuple[Mapping[str, Operator], ...]:
        return self.prepared.operators

    @property
    def searched(self) -> tuple[str, ...]:
        """Names of the axes whose layouts are searched, in the mesh's order."""
        return (*((self.free,) if self.free else ()), *self.mesh.operator_axes)

    @property
    def gathered(self) -> str:
        """The axis over which parameters are gathered inside a microbatch."""
        return self.system.gathered if self.system is not None else ""

    def states(self, block: int, name: str) -> dict[str, State]:
        """Of a value on the batch's axes."""
        batch = self.prepared.batch
        return {axis: split.states[block, name] for axis, split in batch.items() if axis != self.free}

    def entering(self, block: int, name: str) -> dict[str, State]:
        """Of a constant of a block, the states on searched axes, beside R, in which the batch may be read."""
        return {self.free: self.prepared.batch[self.free].states[block, name]} if self.free else {}


def has_sequence(kind: TensorType, mesh: Mesh) -> bool:
    """Whether an activation has a sequence that the tensor axes can split, beside the context's."""
    return len(kind.shape) == 3 and kind.shape[SEQUENCE] % (mesh.tensor_size * mesh.context_size) == 0
