"""What an operator problem is made of: a model on a mesh, what each operator may do there, and a price list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from autoplan.cost import Operator
from autoplan.ir.graph import Model, TensorType
from autoplan.ir.layout import Layout, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed import Collective
from autoplan.rules.strategies import Strategy
from autoplan.search.space.tensor_axes import System

SEQUENCE = 1  # the dim of an activation [batch, sequence, features]


class Prices(Protocol):
    """What the problem asks of pricing; seconds are of one microbatch, forward and backward."""

    def operators_s(self, operator: Operator, strategies: Sequence[Strategy]) -> np.ndarray: ...

    def move_s(self, kind: TensorType, source: Layout, target: Layout, carries: bool) -> float | None: ...

    def move_steps(
        self, kind: TensorType, source: Layout, target: Layout, carries: bool
    ) -> tuple[Collective, ...] | None: ...

    def stored_s(self, kind: TensorType, layout: Layout, count: int = 1) -> float: ...


@dataclass(frozen=True)
class Formulation:
    """All that a problem is made of.

    operators   of every block, by name
    options     the strategies of every node, by (block, name)
    states      (axis, state) of every value on the batch's axes, by (block, name)
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
