"""Bytes that a training step holds on one device: model states, activations in flight, transients.

How many activations are in flight, `pipeline` says. Modules, each importing only those before it:

    optimizers   what an optimizer keeps of each parameter
    states       parameters, gradients, master copies and optimizer state under a precision and a ZeRO level
    activations  what a microbatch saves for its backward
    transients   what lives for a moment: logits, gathered parameters, buffers of collectives
"""

from cost_models.memory.activations import (
    outer_activation_bytes,
    output_tensors_bytes,
    transformer_layer_activation_bytes,
)
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
    "outer_activation_bytes",
    "output_tensors_bytes",
    "state_bytes",
    "transformer_layer_activation_bytes",
    "update_bytes",
]
