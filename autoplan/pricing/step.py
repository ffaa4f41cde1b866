"""Seconds and bytes of what happens once a step, and of a whole schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.mesh import Mesh
from autoplan.options import Inference, Training
from autoplan.pricing.operator import Operator, price_operator
from autoplan.pricing.prices import Prices
from autoplan.strategies import Strategy
from cost_models.compute import memory_bound_seconds
from cost_models.hardware import Device
from cost_models.memory import STATES_PER_ELEMENT
from cost_models.pipeline import Timeline, in_flight, simulate

UNKNOWN_OPTIMIZER_STATES = 2  # those of Adam, of which most others are kin


@dataclass(frozen=True)
class DataAxis:
    """How the data axis shares the states (ZeRO), in bytes and seconds.

    zero  0: every rank holds everything and gradients are all-reduced after the backward; 1: the optimizer's state is
          split, gradients are reduce-scattered under the last backward and parameters gathered under the next forward;
          2: gradients are split too, reduce-scattered in each microbatch; 3: parameters too, gathered in each
          microbatch's forward and backward (Rajbhandari et al. 2020)
    piped  several pipeline stages: their engine reduces gradients once, after its last microbatch, at every level

    Bytes are those in which parameters are used; what is stored takes ``prices.stored`` times as many.
    """

    zero: int
    size: int
    prices: Prices
    piped: bool = False

    def gather_s(self, bytes: float) -> float:
        """One all-gather of parameters."""
        return self.prices.collective_s("all-gather", bytes, "dp")

    def scatter_s(self, bytes: float) -> float:
        """One reduce-scatter of gradients, in the dtype in which they are stored."""
        return self.prices.collective_s("reduce-scatter", self.prices.stored * bytes, "dp")

    @property
    def scatters_each(self) -> bool:
        """Whether gradients are scattered in each microbatch rather than once a step."""
        return self.zero >= 2 and not self.piped

    def exposed_forward_s(self, forward_s: float, parameter_bytes: float) -> float:
        """What a segment's forward waits for the gather of its parameters, prefetched under the segment before."""
        return max(0.0, self.gather_s(parameter_bytes) - forward_s) if self.zero == 3 else 0.0

    def exposed_backward_s(self, backward_s: float, parameter_bytes: float) -> float:
        """The same backward: parameters gathered again (ZeRO-3), gradients scattered (ZeRO-2 and 3)."""
        busy_s = self.gather_s(parameter_bytes) if self.zero == 3 else 0.0
        busy_s += self.scatter_s(parameter_bytes) if self.scatters_each else 0.0
        return max(0.0, busy_s - backward_s)

    def once_s(self, parameter_bytes: float, forward_s: float, backward_s: float) -> tuple[float, float]:
        """(seconds, of these hidden) of the collectives once a step, for a stage with these times of a microbatch."""
        if self.size == 1:
            return 0.0, 0.0
        if self.zero == 0:
            return self.prices.collective_s("all-reduce", self.prices.stored * parameter_bytes, "dp"), 0.0
        gather_s = self.gather_s(parameter_bytes) if self.zero < 3 else 0.0
        scatter_s = 0.0 if self.scatters_each else self.scatter_s(parameter_bytes)
        return gather_s + scatter_s, min(gather_s, forward_s) + min(scatter_s, backward_s)

    @property
    def parameter_share(self) -> float:
        """Bytes of parameters held between uses, per byte of them: under ZeRO-1 and 2 the shard, and the gathered."""
        stored = self.prices.stored
        return stored if self.zero == 0 else stored / self.size + (self.zero < 3)

    @property
    def gradient_share(self) -> float:
        """The same of gradients: those that are scattered once a step accumulate whole until then."""
        stored = self.prices.stored
        return stored if self.zero == 0 else stored / self.size + (0.0 if self.scatters_each else stored)

    @property
    def optimizer_share(self) -> float:
        return self.prices.stored * (1.0 if self.zero == 0 else 1 / self.size)

    @property
    def cast_share(self) -> float:
        """Bytes kept for the backward of each microbatch: without ZeRO a parameter that is stored in float32 is cast
        where it is used, and the product keeps the cast one."""
        return 1.0 if self.zero == 0 and self.prices.stored > 1 and self.prices.training else 0.0

    @property
    def gathered_segments(self) -> tuple[float, float]:
        """Segments whose parameters, and whose gradients, stand whole at once: the one in use, the one prefetched."""
        return (2.0 if self.zero == 3 else 0.0, self.prices.stored if self.scatters_each else 0.0)


def stored_ratio(training: Training | Inference) -> float:
    """Bytes in which parameters and gradients are stored for each byte in which they are used (``Prices.stored``)."""
    mixed = isinstance(training, Training) and training.precision in ("bf16-mixed", "fp16-mixed")
    return 2.0 if mixed else 1.0


def optimizer_states(training: Training | Inference) -> int:
    """Elements of optimizer state for each parameter element."""
    if isinstance(training, Inference):
        return 0
    name = "sgd-momentum" if training.optimizer == "sgd" and training.momentum else training.optimizer
    return STATES_PER_ELEMENT.get(name, UNKNOWN_OPTIMIZER_STATES)


def optimizer_passes(training: Training | Inference) -> float:
    """Passes over a parameter's bytes in one update: it, its gradient and its states are read, it and they written."""
    if isinstance(training, Inference):
        return 0.0
    clipping = 1 if training.clip_grad_norm is not None else 0
    return 3 + 2 * optimizer_states(training) + clipping


def update_s(bytes: float, passes: float, prices: Prices) -> float:
    """Seconds of the optimizer over the bytes of parameter that one device updates."""
    return float(memory_bound_seconds(bytes * passes, prices.device))


def accumulate_s(bytes: float, prices: Prices) -> float:
    """Seconds to add one microbatch's gradients to those before."""
    return float(memory_bound_seconds(3 * prices.stored * bytes, prices.device))


def held_microbatches(schedule: str, stages: int, microbatches: int) -> tuple[int, ...]:
    """Microbatches whose activations each stage holds at its peak; one at a time where there is no pipeline."""
    return in_flight(schedule, stages, microbatches) if stages > 1 else (1,)


def timeline(
    schedule: str, forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float], microbatches: int
) -> Timeline:
    """The schedule's timeline; without a pipeline its microbatches follow one another."""
    return simulate(schedule if len(forward_s) > 1 else "1f1b", forward_s, backward_s, send_s, microbatches)


def model_flops_per_s(
    blocks: Sequence[Mapping[str, Operator]], uses: Mapping[int, int], device: Device
) -> tuple[float, float]:
    """(FLOPs of the model's forward over the whole batch, peak FLOPs per second of one device at its main dtype).

    uses  how often each block stands in the chain
    """
    by_dtype: dict[str, float] = {}
    for index, operators in enumerate(blocks):
        for operator in operators.values():
            cost = price_operator(operator, Strategy(()), Mesh(()), device, fuses=True, training=False)
            if cost.flops:
                dtype = operator.operands[0].dtype
                by_dtype[dtype] = by_dtype.get(dtype, 0.0) + cost.flops * uses[index]
    if not by_dtype:
        return 0.0, 0.0
    return sum(by_dtype.values()), device.peak_flops_per_s[max(by_dtype, key=lambda d: by_dtype[d])]
