"""Model states: parameters, gradients, master copies, optimizer state, as precision and ZeRO share them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.arithmetic import Number
from cost_models.optimizers import OPTIMIZERS

QUANTISED_BLOCK = 2048
"""Elements that share a float32 scale where states are kept in 8 bit (Dettmers et al. 2022, section 2.1)."""


@dataclass(frozen=True)
class Precision:
    """What a precision keeps of each parameter, in bytes an element.

    parameter  as used by the forward
    gradient   as accumulated
    master     a further copy that the optimizer updates; 0 where it updates the parameter itself
    """

    parameter: int
    gradient: int
    master: int

    @property
    def state(self) -> int:
        """Bytes of one element of optimizer state: it has the precision of what the optimizer updates."""
        return self.master or self.parameter


PRECISIONS: Mapping[str, Precision] = {
    "fp64": Precision(8, 8, 0),
    "fp32": Precision(4, 4, 0),
    "bf16": Precision(2, 2, 0),
    "bf16-mixed": Precision(2, 2, 4),
    "fp16-mixed": Precision(2, 2, 4),
}
"""Rajbhandari et al. 2020 (ZeRO), section 3.1: 2 bytes of parameter, 2 of gradient, and with Adam K = 12 under mixed
precision: a float32 master, momentum and variance."""

FLOAT32_GRADIENTS: Mapping[str, Precision] = {
    **PRECISIONS,
    "bf16-mixed": Precision(2, 4, 4),
    "fp16-mixed": Precision(2, 4, 4),
}
"""Mixed precision that accumulates gradients in a float32 buffer, as Megatron-LM does: with Adam 18 bytes an element,
6 + 12/N where the optimizer is shared out over N (Megatron-LM docs/user-guide/features/dist_optimizer.md)."""

FLOAT32_STORED: Mapping[str, Precision] = {
    **PRECISIONS,
    "bf16-mixed": Precision(4, 4, 0),
    "fp16-mixed": Precision(4, 4, 0),
}
"""The other account of mixed precision, PyTorch's autocast and FSDP's ``MixedPrecisionPolicy``: the stored parameter is
float32 and is its own master, gradients accumulate in float32, and the half-precision copy is cast for each use, hence
a transient. With Adam 16 bytes an element too, but shared out differently by ZeRO."""

ACCOUNTS: Mapping[str, Mapping[str, Precision]] = {
    "half": PRECISIONS,
    "float32-gradients": FLOAT32_GRADIENTS,
    "float32-stored": FLOAT32_STORED,
}
"""The accounts of mixed precision by name."""

OFFLOADS = ("none", "optimizer", "gradients", "parameters")
"""What lies in the host's memory: nothing; master and optimizer state; gradients too (ZeRO-Offload, Ren et al. 2021,
section 3); parameters too (ZeRO-Infinity, Rajbhandari et al. 2021)."""


@dataclass(frozen=True)
class ModelStates:
    """Model states on one device, in bytes."""

    parameters_bytes: Number
    gradients_bytes: Number
    master_bytes: Number
    optimizer_bytes: Number

    @property
    def total_bytes(self) -> Number:
        return self.parameters_bytes + self.gradients_bytes + self.master_bytes + self.optimizer_bytes

    def __add__(self, other: ModelStates) -> ModelStates:
        return ModelStates(
            self.parameters_bytes + other.parameters_bytes,
            self.gradients_bytes + other.gradients_bytes,
            self.master_bytes + other.master_bytes,
            self.optimizer_bytes + other.optimizer_bytes,
        )


STATES_PER_ELEMENT: Mapping[str, int] = {
    name: state.copies for name, state in OPTIMIZERS.items() if not (state.quantised or state.factored or state.rows)
}
"""Elements of optimizer state for each parameter element, of the optimizers that keep whole copies."""


def optimizer_state_bytes(
    optimizer: str, elements: Number, element_bytes: Number, factored_elements: Number | None = None
) -> Number:
    """Bytes of state for ``elements`` parameters.

    optimizer          a name of ``OPTIMIZERS``
    element_bytes      of one element of what the optimizer updates (a float32 master: 4)
    factored_elements  rows plus columns, summed over the matrices, where state is factored (adafactor); rows, where it
                       has one number for each (rowwise-adagrad)

    A ``ValueError`` for another optimizer, or where ``factored_elements`` is needed and missing.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r} is none of {', '.join(OPTIMIZERS)}")
    state = OPTIMIZERS[optimizer]
    held = elements * (state.copies * element_bytes + state.quantised * (1 + 4 / QUANTISED_BLOCK))
    if not state.factored and not state.rows:
        return held
    if factored_elements is None:
        raise ValueError(f"optimizer {optimizer!r} keeps rows and columns: give factored_elements, their number")
    return held + (state.factored * 4 + state.rows * element_bytes) * factored_elements


def state_bytes(
    elements: Number,
    precision: str,
    optimizer: str,
    zero: int = 0,
    dp: Number = 1,
    account: Mapping[str, Precision] = PRECISIONS,
    offload: str = "none",
    factored_elements: Number | None = None,
) -> ModelStates:
    """Model states of ``elements`` parameters on one device of ``dp`` that share them.

    elements           parameter elements that the device would hold were nothing shared out over the data axis
    precision          "fp64", "fp32", "bf16", "bf16-mixed", "fp16-mixed"
    optimizer          a name of ``OPTIMIZERS``
    zero               what is shared out over ``dp``: 1 the master and the optimizer state, 2 gradients too, 3
                       parameters too
    account            PRECISIONS, as the ZeRO paper counts, FLOAT32_GRADIENTS or FLOAT32_STORED
    offload            what the host holds instead of the device: one of ``OFFLOADS``
    factored_elements  see ``optimizer_state_bytes``

    Rajbhandari et al. 2020, figure 1 and table 1: (2+2+K)Ψ, 4Ψ+KΨ/N, 2Ψ+(2+K)Ψ/N, (4+K)Ψ/N with K = 12. Under
    FLOAT32_STORED ZeRO-1 and ZeRO-2 keep the float32 parameter whole: 8Ψ+8Ψ/N, 4Ψ+12Ψ/N, 16Ψ/N. Under
    FLOAT32_GRADIENTS: 18Ψ, 6Ψ+12Ψ/N, 2Ψ+16Ψ/N, 18Ψ/N.
    """
    if precision not in account:
        raise ValueError(f"precision {precision!r} is none of {', '.join(account)}")
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero {zero!r} is none of 0, 1, 2, 3")
    if offload not in OFFLOADS:
        raise ValueError(f"offload {offload!r} is none of {', '.join(OFFLOADS)}")
    kept = account[precision]
    state = optimizer_state_bytes(optimizer, elements, kept.state, factored_elements)
    here = [OFFLOADS.index(offload) < level for level in (3, 2, 1, 1)]
    whole = (kept.parameter * elements, kept.gradient * elements, kept.master * elements, state)
    shared = [dp if zero >= level else 1 for level in (3, 2, 1, 1)]
    return ModelStates(*(held / ranks if on else 0.0 for held, ranks, on in zip(whole, shared, here, strict=True)))
