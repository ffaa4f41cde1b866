"""A traced model at another batch or sequence length, without a second trace.

The dims of all values fall into classes by the operators' rules. New sizes of batch and sequence determine the other
classes. If a graph cannot be resized, `RescaleError` names the value.

Order: `dims` (dims in classes), `dim_sizes` (sizes of classes), `relate` (what an operator says of its dims), `rewrite`
(a node at its new size), `reach` (how far indices reach), `whole_model` (the whole model).
"""

from autoplan.trace.rescale.whole_model import rescale

__all__ = ["rescale"]
