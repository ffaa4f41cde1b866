"""What a user asks for: how to train, and which parts of the parallelism are pinned."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from autoplan.errors import ParallelismError
from autoplan.mesh import TENSOR

PRECISIONS = ("fp32", "fp64", "bf16", "bf16-mixed", "fp16-mixed")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
RECOMPUTE = ("none", "selective", "full")
EFFORTS = ("full", "fast")
TENSOR_SYSTEMS = ("2d", "2.5d", "3d")


@dataclass(frozen=True)
class Training:
    """How the program trains.

    optimizer       "adamw", "adam", "sgd", …: a class of torch.optim by its lower-case name
    precision       "fp32", "fp64", "bf16" (parameters too), "bf16-mixed" (float32 parameters, bfloat16 compute)
    learning_rate, weight_decay, betas, eps, momentum   the optimizer's own
    clip_grad_norm  the global norm that gradients are clipped to before each optimizer step; None: not clipped
    compile         the segments are compiled, on devices whose profile says that programs are; a CPU runs them eagerly
    seed            of the dropout masks
    """

    optimizer: str = "adamw"
    precision: str = "fp32"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    clip_grad_norm: float | None = None
    compile: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_how(self.precision, self.compile)
        for name in ("learning_rate", "weight_decay", "eps", "momentum"):
            if not (is_number(value := getattr(self, name)) and value >= 0):
                raise ParallelismError(f"{name}={value!r}", "it is a number of at least 0", "give 0 or more")
        if not (isinstance(self.betas, tuple) and len(self.betas) == 2 and all(map(is_share, self.betas))):
            cause = "they are a pair of numbers from 0 to below 1"
            raise ParallelismError(f"betas={self.betas!r}", cause, "give for example (0.9, 0.999)")
        if self.clip_grad_norm is not None and not (is_number(self.clip_grad_norm) and self.clip_grad_norm > 0):
            raise ParallelismError(f"clip_grad_norm={self.clip_grad_norm!r}", "a norm is positive", "leave it out")
        if not is_whole(self.seed):
            raise ParallelismError(f"seed={self.seed!r}", "a seed is a whole number", "give for example 0")

    def with_precision(self, precision: str) -> Training:
        return replace(self, precision=precision)


@dataclass(frozen=True)
class Inference:
    """Plans the forward alone."""

    precision: str = "fp32"
    compile: bool = True

    def __post_init__(self) -> None:
        check_how(self.precision, self.compile)


@dataclass(frozen=True)
class Parallelism:
    """A parallelism; a field that is None is left to the search.

    dp, tp, pp       sizes of the data, tensor and pipeline axes; their product is the cluster's device count
    zero             0 (plain data parallel), 1, 2 or 3
    micro_batch      rows of the batch in one microbatch on one data-parallel rank
    schedule         "gpipe", "1f1b", "interleaved", "zero-bubble"
    virtual_stages   stages on one pipeline rank
    recompute        "none", "selective", "full"
    sequence_parallel  activations between the tensor-parallel operators split along the sequence
    offload          "optimizer", "parameters" or None
    tensor           factors of tp, outermost first: one mesh axis for each ("tp", "tp2", "tp3"); (tp,) is one axis
    tensor_system    "2d", "2.5d" or "3d": how weights and activations lie over these axes (``search.tensor``)
    """

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    zero: int | None = None
    micro_batch: int | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    offload: str | None = None
    tensor: tuple[int, ...] | None = None
    tensor_system: str | None = None

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "micro_batch", "virtual_stages"):
            size = getattr(self, name)
            if size is not None and (not is_whole(size) or size < 1):
                raise ParallelismError(f"{name}={size!r}", "a size is a whole number of at least 1", f"give {name}>=1")
        self._one_of("zero", (0, 1, 2, 3))
        self._one_of("schedule", SCHEDULES)
        self._one_of("recompute", RECOMPUTE)
        self._one_of("offload", ("optimizer", "parameters"))
        self._one_of("tensor_system", TENSOR_SYSTEMS)
        self._one_of("sequence_parallel", (True, False))
        if self.tensor is not None:
            self._check_factors(self.tensor)

    def _check_factors(self, factors: tuple[int, ...]) -> None:
        counted = isinstance(factors, tuple) and all(is_whole(factor) and factor >= 1 for factor in factors)
        if not counted or not 1 <= len(factors) <= len(TENSOR):
            raise ParallelismError(
                f"tensor={factors!r}", f"a tensor axis is a tuple of one to {len(TENSOR)} factors of at least 1",
                "give for example (2, 4), or leave it out",
            )  # fmt: skip
        product = math.prod(factors)
        if self.tp is not None and product != self.tp:
            raise ParallelismError(
                f"tensor={factors!r}", f"it multiplies to {product}, and tp is {self.tp}", f"give tp={product}"
            )

    def _one_of(self, name: str, allowed: tuple) -> None:
        value = getattr(self, name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise ParallelismError(f"{name}={value!r}", "no such choice", f"use one of {allowed}, or None")

    def pinned(self) -> dict[str, object]:
        """The fields that are not left to the search."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


def check_how(precision: object, compile: object) -> None:
    """ParallelismError for a precision that is none, or a choice of compilation that is neither."""
    if precision not in PRECISIONS:
        raise ParallelismError(f"precision={precision!r}", "no such precision", f"use one of {PRECISIONS}")
    if not isinstance(compile, bool):
        raise ParallelismError(f"compile={compile!r}", "it is compiled or not", "give True or False")


def is_whole(value: object) -> bool:
    """Whether this is a whole number; True and False, which Python counts among them, are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether this is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_share(value: object) -> bool:
    """Whether this is a number from 0 to below 1."""
    return is_number(value) and 0 <= value < 1  # type: ignore[operator]


def check_effort(effort: object) -> None:
    """ParallelismError for an effort that is none."""
    if effort not in EFFORTS:
        raise ParallelismError(f"effort={effort!r}", "no such effort", f"use one of {EFFORTS}")
