"""What an operator problem is made of: a model on a mesh, what each operator may do there, and a price list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoplan.cost import Operator, Prices
from autoplan.ir.graph import Model, TensorType
from autoplan.ir.layout import State
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.classes import Classes
from autoplan.search.space.tensor_axes import System

SEQUENCE = 1  # the dim of an activation [batch, sequence, features]


@dataclass(frozen=True)
class Formulation:
    """All that a problem is made of.

    operators   of every block, by name
    options     the strategies of every node, by (block, name)
    classes     decisions that several places share
    states      (axis, state) of every value on the batch's axes, by (block, name)
    prices      seconds are of one microbatch, forward and backward
    searched    names of the axes whose layouts are searched, in the mesh's order
    sequence    whether activations between segments are split along the sequence; None: whatever is cheaper
    system      what a named system asks of the tensor axes
    entering    of a constant of a block, the states on searched axes, beside R, in which the batch may be read
    alike       of an operator, by (block, name), the first that costs the same where it is split the same
    """

    model: Model
    mesh: Mesh
    operators: tuple[Mapping[str, Operator], ...]
    options: Mapping[tuple[int, str], tuple[Strategy, ...]]
    classes: Classes
    states: Callable[[int, str], Mapping[str, State]]
    prices: Prices
    searched: tuple[str, ...] = ("tp",)
    training: bool = True
    sequence: bool | None = None
    system: System | None = None
    entering: Callable[[int, str], Mapping[str, State]] = lambda index, name: {}
    alike: Mapping[tuple[int, str], tuple[int, str]] = field(default_factory=dict)

    @property
    def gathered(self) -> str:
        """The axis over which parameters are gathered inside a microbatch."""
        return self.system.gathered if self.system is not None else ""


def has_sequence(kind: TensorType, mesh: Mesh) -> bool:
    """Whether an activation has a sequence that the tensor axes can split."""
    return len(kind.shape) == 3 and kind.shape[SEQUENCE] % mesh.tensor_size == 0
