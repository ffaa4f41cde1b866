"""Seconds and bytes of what a plan emits; the only readers of ``cost_models`` in autoplan, beside the cluster."""

from autoplan.cost.operators.fusion import GATHERING
from autoplan.cost.operators.operator import Cost, Operator, operators_of, weights_of
from autoplan.cost.prices import Prices
from autoplan.cost.step import Timeline, timeline
from autoplan.cost.zero_costs import DataAxis
from cost_models.hardware import Device, Topology
from cost_models.memory import update_bytes

__all__ = [
    "GATHERING", "Cost", "DataAxis", "Device", "Operator", "Prices", "Timeline", "Topology", "operators_of", "timeline",
    "update_bytes", "weights_of",
]  # fmt: skip
