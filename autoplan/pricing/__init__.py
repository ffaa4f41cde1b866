"""Seconds and bytes of what a plan emits; the only readers of ``cost_models`` in autoplan, beside the cluster."""

from autoplan.pricing.data import DataAxis
from autoplan.pricing.fusion import GATHERING
from autoplan.pricing.operator import Cost, Operator, operators_of, weights_of
from autoplan.pricing.prices import Prices
from autoplan.pricing.step import Timeline, timeline
from cost_models.hardware import Device, Topology
from cost_models.memory import update_bytes

__all__ = [
    "GATHERING", "Cost", "DataAxis", "Device", "Operator", "Prices", "Timeline", "Topology", "operators_of", "timeline",
    "update_bytes", "weights_of",
]  # fmt: skip
