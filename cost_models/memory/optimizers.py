"""What an optimizer keeps of each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.arithmetic import Number

QUANTISED_BLOCK = 2048
"""Elements that share a float32 scale where states are kept in 8 bit (Dettmers et al. 2022, section 2.1)."""


@dataclass(frozen=True)
class OptimizerState:
    """State of an optimizer, in copies of the parameter.

    copies     in the precision of what the optimizer updates
    quantised  in 8 bit, with a float32 scale for each block of ``QUANTISED_BLOCK``
    factored   float32 row sums and column sums of a matrix instead of the matrix
    rows       one for each row of a matrix, in the precision of what the optimizer updates
    """

    copies: int = 0
    quantised: int = 0
    factored: int = 0
    rows: int = 0


OPTIMIZERS: Mapping[str, OptimizerState] = {
    "sgd": OptimizerState(),
    "sgd-momentum": OptimizerState(copies=1),
    "asgd": OptimizerState(copies=1),
    "muon": OptimizerState(copies=1),
    "adagrad": OptimizerState(copies=1),
    "rmsprop": OptimizerState(copies=1),
    "lion": OptimizerState(copies=1),
    "adam": OptimizerState(copies=2),
    "adamw": OptimizerState(copies=2),
    "nadam": OptimizerState(copies=2),
    "radam": OptimizerState(copies=2),
    "adamax": OptimizerState(copies=2),
    "rprop": OptimizerState(copies=2),
    "lamb": OptimizerState(copies=2),
    "adadelta": OptimizerState(copies=2),
    "amsgrad": OptimizerState(copies=3),
    "adafactor": OptimizerState(factored=1),
    "rowwise-adagrad": OptimizerState(rows=1),
    "sgd-momentum-8bit": OptimizerState(quantised=1),
    "lion-8bit": OptimizerState(quantised=1),
    "adam-8bit": OptimizerState(quantised=2),
    "adamw-8bit": OptimizerState(quantised=2),
}
"""Kingma & Ba 2015 (adam, adamax), Loshchilov & Hutter 2019 (adamw), You et al. 2020 (lamb), Duchi et al. 2011
(adagrad), Zeiler 2012 (adadelta), Reddi et al. 2018 (amsgrad), Chen et al. 2023 (lion), Shazeer & Stern 2018
(adafactor without momentum, section 4), Ivchenko et al. 2022 (TorchRec, rowwise-adagrad), Dettmers et al. 2022 (8
bit); Polyak & Juditsky 1992 (asgd: the mean of the parameters), Jordan 2024 (muon: momentum, of matrices), Riedmiller
& Braun 1993 (rprop: the gradient before, each element's step)."""

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
