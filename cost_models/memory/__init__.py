"""Bytes that a training step holds on one device: model states and transients.

What operators save for their backward stands in `transformer`, and how often, in `pipeline`. Modules, each importing
only those before it:

    optimizers   what an optimizer keeps of each parameter
    states       parameters, gradients, master copies and optimizer state under a precision and a ZeRO level
    transients   what lives for a moment: logits, gathered parameters, buffers of collectives
"""

from cost_models.memory.optimizers import OPTIMIZERS, STATES_PER_ELEMENT, OptimizerState, optimizer_state_bytes
from cost_models.memory.states import (
    ACCOUNTS,
    FLOAT32_GRADIENTS,
    FLOAT32_STORED,
    OFFLOADS,
    PRECISIONS,
    ModelStates,
    Precision,
    state_bytes,
)
from cost_models.memory.transients import LOSSES, loss_bytes, update_bytes

__all__ = [
    "ACCOUNTS",
    "FLOAT32_GRADIENTS",
    "FLOAT32_STORED",
    "LOSSES",
    "OFFLOADS",
    "OPTIMIZERS",
    "PRECISIONS",
    "STATES_PER_ELEMENT",
    "ModelStates",
    "OptimizerState",
    "Precision",
    "loss_bytes",
    "optimizer_state_bytes",
    "state_bytes",
    "update_bytes",
]
