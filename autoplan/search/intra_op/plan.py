"""One way to run every block, with its prices."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.cost import Device
from autoplan.ir.choice import BlockChoice
from autoplan.ir.mesh import TENSOR
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost.account import BlockPrice
from autoplan.search.intra_op.solve import Solution


@dataclass(frozen=True, eq=False)
class Point:
    """One way to run every block. Each is equal to itself alone: who solves a problem gives the same object for the
    same answer, so that a point is a key.

    blocks, prices  in the model's order
    kinds           of several kinds of device, the prices on each; they were chosen for the slowest
    gap             proven, relative
    """

    blocks: tuple[BlockChoice, ...]
    prices: tuple[BlockPrice, ...]
    solution: Solution
    kinds: tuple[tuple[Device, tuple[BlockPrice, ...]], ...] = ()

    def on(self, device: Device) -> tuple[BlockPrice, ...]:
        """The prices on one kind of device; those of the slowest on what is none."""
        return dict(self.kinds).get(device, self.prices)

    @property
    def idle(self) -> bool:
        """Whether no operator is split on some tensor axis, so that its ranks repeat one another's work."""
        strategies = [strategy for block in self.blocks for _, strategy in block.strategies]
        axes = {axis for strategy in strategies[:1] for axis, _ in strategy.axes if axis in TENSOR}
        return not all(any(splits(strategy, axis) for strategy in strategies) for axis in axes)

    @property
    def gap(self) -> float:
        return (self.solution.objective - self.solution.bound) / max(self.solution.objective, 1e-30)


def splits(strategy: Strategy, axis: str) -> bool:
    """Whether an operand or the result is split on an axis."""
    chosen = strategy.on(axis)
    return any(state.kind == "S" for state in (*chosen.inputs, chosen.output))
