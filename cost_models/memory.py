"""Bytes that a training step holds on one device: model states, activations in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Number = Any
"""A float, an int, or a NumPy array of them."""


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

FLOAT32_STORED: Mapping[str, Precision] = {
    **PRECISIONS,
    "bf16-mixed": Precision(4, 4, 0),
    "fp16-mixed": Precision(4, 4, 0),
}
"""The other account of mixed precision, PyTorch's autocast and FSDP's ``MixedPrecisionPolicy``: the stored parameter is
float32 and is its own master, gradients accumulate in float32, and the half-precision copy is cast for each use, hence
a transient. With Adam 16 bytes an element too, but shared out differently by ZeRO."""

STATES_PER_ELEMENT: Mapping[str, int] = {"sgd": 0, "sgd-momentum": 1, "adam": 2, "adamw": 2}
"""Elements of optimizer state for each parameter element."""


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


def state_bytes(
    elements: Number,
    precision: str,
    optimizer: str,
    zero: int = 0,
    dp: Number = 1,
    account: Mapping[str, Precision] = PRECISIONS,
) -> ModelStates:
    """Model states of ``elements`` parameters on one device of ``dp`` that share them.

    elements   parameter elements that the device would hold were nothing shared out over the data axis
    precision  "fp64", "fp32", "bf16", "bf16-mixed", "fp16-mixed"
    optimizer  "adamw", "adam", "sgd", "sgd-momentum"
    zero       what is shared out over ``dp``: 1 the master and the optimizer state, 2 gradients too, 3 parameters too
    account    PRECISIONS, as the ZeRO paper counts, or FLOAT32_STORED

    Rajbhandari et al. 2020, figure 1 and table 1: (2+2+K)Ψ, 4Ψ+KΨ/N, 2Ψ+(2+K)Ψ/N, (4+K)Ψ/N with K = 12. Under
    FLOAT32_STORED ZeRO-1 and ZeRO-2 keep the float32 parameter whole: 8Ψ+8Ψ/N, 4Ψ+12Ψ/N, 16Ψ/N.
    """
    if precision not in account:
        raise ValueError(f"precision {precision!r} is none of {', '.join(account)}")
    if optimizer not in STATES_PER_ELEMENT:
        raise ValueError(f"optimizer {optimizer!r} is none of {', '.join(STATES_PER_ELEMENT)}")
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero {zero!r} is none of 0, 1, 2, 3")
    kept = account[precision]
    return ModelStates(
        parameters_bytes=kept.parameter * elements / (dp if zero >= 3 else 1),
        gradients_bytes=kept.gradient * elements / (dp if zero >= 2 else 1),
        master_bytes=kept.master * elements / (dp if zero >= 1 else 1),
        optimizer_bytes=STATES_PER_ELEMENT[optimizer] * kept.state * elements / (dp if zero >= 1 else 1),
    )


def activation_bytes(saved_per_microbatch_bytes: Sequence[float], in_flight: Sequence[int]) -> tuple[float, ...]:
    """Activations that each stage holds at its peak: what it saves of one microbatch, times those in flight there.

    ``in_flight`` comes from the schedule (``pipeline.in_flight``).
    """
    if len(saved_per_microbatch_bytes) != len(in_flight):
        raise ValueError(f"{len(saved_per_microbatch_bytes)} stages save, {len(in_flight)} have microbatches in flight")
    return tuple(saved * count for saved, count in zip(saved_per_microbatch_bytes, in_flight, strict=True))


def transformer_layer_activation_bytes(
    sequence: Number,
    micro_batch: Number,
    hidden: Number,
    heads: Number,
    tensor: Number = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> Number:
    """Saved activations of one GPT layer in 16 bit with unfused attention and dropout, in bytes.

    recompute  "none", "selective" (the attention core is recomputed), "full" (only the layer's input is kept)

    Korthikanti et al. 2022, table 2: sbh(34 + 5as/h) without parallelism, sbh(10 + 24/t + 5as/(ht)) with tensor
    parallelism, sbh(34 + 5as/h)/t with sequence parallelism too; selective drops the 5as/h; full leaves 2sbh, which
    sequence parallelism does not share out. An analytic check: a plan's own figure is what its operators save.
    """
    sbh = 1.0 * sequence * micro_batch * hidden
    if recompute == "full":
        return 2 * sbh
    if recompute not in ("none", "selective"):
        raise ValueError(f"recompute {recompute!r} is none of none, selective, full")
    attention = 5.0 * heads * sequence / hidden if recompute == "none" else 0.0
    whole = 10 / tensor if sequence_parallel else 10
    return sbh * (whole + 24 / tensor + attention / tensor)
