"""What of a model's arithmetic the tensor axis splits: a plan whose "tp" splits rows alone shall say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autoplan.cost import Device, Operator
from autoplan.cost.step import product_flops
from autoplan.ir.choice import BlockChoice, SplitShare
from autoplan.ir.mesh import TENSOR, Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.problem_inputs import Prepared


def split_share(prepared: Prepared, choices: Sequence[BlockChoice], mesh: Mesh, device: Device) -> SplitShare | None:
    """Shares of a step's FLOPs; None where the tensor axis has one rank, or nothing multiplies.

    choices  how each block runs, in the model's order
    device   whose kernels count FLOPs
    """
    axes = [name for name in mesh.operator_axes if name in TENSOR and mesh.size(name) > 1]
    uses = Counter(segment.block for segment in prepared.model.segments)
    total = split = weights = 0.0
    for number, (choice, operators) in enumerate(zip(choices, prepared.operators, strict=True)):
        for name, strategy in choice.strategies:
            flops = uses[number] * product_flops(operators[name], device)
            total += flops
            if all(any(state.kind == "S" for state in strategy.on(axis).inputs) for axis in axes):
                split += flops
                weights += flops * any(splits_weight(operators[name], strategy, axis) for axis in axes)
    return SplitShare(split / total, weights / total) if axes and total else None


def splits_weight(operator: Operator, strategy: Strategy, axis: str) -> bool:
    """Whether ranks have different parts of something that is computed from parameters alone."""
    states = strategy.on(axis).inputs
    return any(weighs and state.kind == "S" for weighs, state in zip(operator.weighs, states, strict=True))
