"""What it takes to update whole matrices, on every rank that holds some of one
(``runtime.optim.gathered_optimizer``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.graph import Model, Parameter
from autoplan.options import Inference, Training
from cost_models.compute import matmul_seconds, update_seconds
from cost_models.hardware import Device

GATHERED: Mapping[str, float] = {"muon": 3.0, "adafactor": 2.0}
"""Tensors of a parameter's shape that are put together around its update: it, its gradient, Muon's momentum."""

NEWTON_SCHULZ_STEPS = 5  # torch.optim.Muon's ns_steps


@dataclass(frozen=True)
class WholeCost:
    """Beside an update of the part that a device keeps, which ``step.update_s`` has.

    copies     tensors of a parameter's shape that are gathered
    passes     of the optimizer over a parameter's bytes
    product_s  of the products in the update of one byte of whole parameter
    """

    copies: float
    passes: float
    product_s: float

    def seconds(self, bytes: float, elsewhere: float, data: DataAxis) -> float:
        """For the parameters of a stage, of which a device uses so many bytes; as if the tensor axes split all of them.

        elsewhere  of these what ZeRO has along the experts' axis on other ranks

        Gathers over the innermost axis first, of what ZeRO shards before that; every rank then computes the whole.
        """
        prices, spent_s = data.prices, 0.0
        shard = data.optimizer_share * (bytes - elsewhere)
        stored = prices.stored * bytes
        if data.zero and data.size > 1:
            spent_s += prices.collective_s("all-gather", self.copies * stored, data.axis)
        for axis in reversed(prices.mesh.operator_axes):
            stored *= prices.mesh.size(axis)
            if prices.mesh.size(axis) > 1:
                spent_s += prices.collective_s("all-gather", self.copies * stored, axis)
        whole_s = float(update_seconds(self.passes * (stored - shard), prices.device)) if stored > shard else 0.0
        return spent_s + whole_s + self.product_s * stored / prices.stored


    def standing_bytes(self, largest: np.ndarray | float, data: DataAxis) -> np.ndarray | float:
        """Of the largest parameter's update, beside what is stored: what is gathered, its update and that orthogonal.

        largest  bytes of it that a device uses
        """
        whole = largest * data.prices.stored * data.prices.mesh.operator_ways
        return (self.copies + 2) * whole


def whole_cost(training: Training | Inference, passes: float, model: Model, device: Device) -> WholeCost | None:
    """The price of an optimizer that looks at whole matrices; None for those that look at single elements."""
    if isinstance(training, Inference) or training.optimizer not in GATHERED:
        return None
    shapes = user_shapes([p for p in model.parameters if p.trainable])
    total = sum(p.type.bytes for p in model.parameters if p.trainable)
    steps = training.optimizer_settings().get("ns_steps", NEWTON_SCHULZ_STEPS)
    assert isinstance(steps, int)
    products_s = 0.0
    if training.optimizer == "muon":
        products_s = sum(steps * newton_schulz_s(shape, device) for shape in shapes if len(shape) == 2)
    return WholeCost(GATHERED[training.optimizer], passes, products_s / total if total else 0.0)


def user_shapes(parameters: Sequence[Parameter]) -> list[tuple[int, ...]]:
    """The shapes that parameters have in the user's model: pieces of a fused projection count as one."""
    found: dict[str, list[int]] = {}
    for parameter in parameters:
        if parameter.source in found and parameter.dim >= 0:
            found[parameter.source][parameter.dim] += parameter.type.shape[parameter.dim]
        else:
            found[parameter.source] = list(parameter.type.shape)
    return [tuple(shape) for shape in found.values()]


def newton_schulz_s(shape: Sequence[int], device: Device) -> float:
    """One iteration of Muon's orthogonalisation in bfloat16: X Xᵀ, its square, and their sum times X, the short side
    first (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks")."""
    short, long = min(shape), max(shape)
    dtype = "bfloat16" if "bfloat16" in device.peak_flops_per_s else "float32"
    products = ((short, short, long), (short, short, short), (short, long, short))
    return sum(float(matmul_seconds(m, n, k, 1, dtype, device)) for m, n, k in products)
