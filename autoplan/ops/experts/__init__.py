"""A mixture's experts as one torch operator, ``autoplan::experts``, and the gating between their products.

Order: `derivatives` (of the gating's functions), `activation` (the gating, as text), `few_sizes` (rows rounded up on a
CPU), `grouped` (grouped matrix products), `gradient` (forward and backward, compiled or not), `mixture` (the operator).
"""

from autoplan.ops.experts.activation import FUNCTIONS, activation_function
from autoplan.ops.experts.mixture import experts

__all__ = ["FUNCTIONS", "activation_function", "experts"]
