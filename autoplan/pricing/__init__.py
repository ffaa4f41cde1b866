"""Seconds and bytes of what a plan emits; the only readers of ``cost_models`` in autoplan, beside the cluster."""

from autoplan.pricing.operator import Cost, Operator, operators_of, weights_of
from autoplan.pricing.prices import Prices

__all__ = ["Cost", "Operator", "Prices", "operators_of", "weights_of"]
