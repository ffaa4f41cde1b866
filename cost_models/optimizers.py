"""What an optimizer keeps of each parameter, and what its update makes for a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.arithmetic import Number


@dataclass(frozen=True)
class OptimizerState:
    """State of an optimizer, in copies of the parameter.

    copies     in the precision of what the optimizer updates
    quantised  in 8 bit, with a float32 scale for each block of 2,048 (Dettmers et al. 2022, section 2.1)
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


def update_bytes(total: Number, largest: Number, together: bool) -> Number:
    """What an optimizer of Adam's kind makes for a moment, in bytes: the roots of second moments, and these divided.

    total, largest  of what it updates, and of the largest one of it
    together        all parameters at once, as torch's foreach kernels do, which divide in place; else one by one, the
                    root and the quotient (torch/optim/adam.py, ``_single_tensor_adam``: ``exp_avg_sq.sqrt() / …``)
    """
    return total if together else 2 * largest
