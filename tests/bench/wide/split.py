"""The share of a plan's FLOPs that the tensor axis splits: 1 where each rank runs its part of every product."""

from __future__ import annotations

from collections import Counter

from autoplan.cost.operators.operator_seconds import price_operator
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.rules.strategies import Strategy
from autoplan.search.state import begin

WHOLE = (Strategy(()), Mesh(()))


def split_share(record: PlanRecord) -> float | None:
    """Of the FLOPs of one device's forward; None where it multiplies nothing.

    A rank's FLOPs are (1 - share) of all, which every rank repeats, and share/ranks of those that are split.
    """
    work = begin(record.model, record.cluster, record.training, Parallelism())
    prices = work.operators.prices(tensor_mesh(record.chosen.mesh))
    times = Counter(segment.block for segment in record.model.segments)
    whole = local = 0.0
    known = zip(record.chosen.blocks, work.prepared.operators, strict=True)
    for index, (choice, operators) in enumerate(known):
        named = dict(operators)
        for name, strategy in choice.strategies:
            alone = price_operator(
                named[name], *WHOLE, prices.device, fuses=prices.fuses, training=prices.training
            )
            whole += times[index] * alone.flops
            local += times[index] * prices.operator(named[name], strategy).flops * prices.mesh.size("mb")
    ranks = record.chosen.mesh.devices
    return (1 - local / whole) / (1 - 1 / ranks) if whole else None
