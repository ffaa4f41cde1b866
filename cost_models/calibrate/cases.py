"""What is measured: operators and collectives by size, each with the cost model's own prediction for it.

A ``family`` is what grows through its sizes together: half of its sizes are fitted, the other half tests the fit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cost_models.compute import (
    ATTENTION_BACKWARD,
    DTYPE_BYTES,
    attention_backward_seconds,
    attention_flops,
    attention_seconds,
    eager_seconds,
    matmul_flops,
    matmul_seconds,
    memory_bound_seconds,
    update_seconds,
)
from cost_models.hardware import Device


@dataclass(frozen=True)
class Matmul:
    """``batch`` products [m, k] @ [k, n]."""

    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def family(self) -> str:
        return f"matmul {self.dtype}"

    @property
    def work(self) -> float:
        """FLOPs."""
        return float(matmul_flops(self.m, self.n, self.k, self.batch))

    def predict(self, device: Device) -> float:
        return _eager(matmul_seconds(self.m, self.n, self.k, self.batch, self.dtype, device), device)


@dataclass(frozen=True)
class Stream:
    """A memory-bound operator: ``name`` over ``elements`` of a dtype, which reads and writes them ``passes`` times."""

    name: str
    elements: int
    passes: int
    dtype: str = "float32"

    @property
    def family(self) -> str:
        return self.name

    @property
    def work(self) -> float:
        """Bytes that move."""
        return float(self.passes * self.elements * DTYPE_BYTES[self.dtype])

    def predict(self, device: Device) -> float:
        return _eager(memory_bound_seconds(self.work, device), device)


@dataclass(frozen=True)
class Update:
    """An optimizer's update of ``elements`` parameters: parameters, gradients and states are moved in ``passes``."""

    elements: int
    passes: int
    dtype: str = "float32"
    family: str = "optimizer"

    @property
    def work(self) -> float:
        """Bytes that move."""
        return float(self.passes * self.elements * DTYPE_BYTES[self.dtype])

    def predict(self, device: Device) -> float:
        return float(update_seconds(self.work, device))


@dataclass(frozen=True)
class Attention:
    """Fused attention over heads of [length, head_dim]; ``backward``: its backward alone."""

    batch: int
    heads: int
    length: int
    head_dim: int
    causal: bool
    backward: bool
    dtype: str = "float32"

    @property
    def family(self) -> str:
        return f"attention {'backward' if self.backward else 'forward'}{' causal' if self.causal else ''}"

    @property
    def work(self) -> float:
        """FLOPs."""
        flops = attention_flops(self.batch, self.heads, self.length, self.length, self.head_dim, self.causal)
        return float(flops) * (ATTENTION_BACKWARD if self.backward else 1.0)

    def predict(self, device: Device) -> float:
        seconds = attention_backward_seconds if self.backward else attention_seconds
        extents = (self.batch, self.heads, self.length, self.length, self.head_dim, self.causal)
        return _eager(seconds(*extents, self.dtype, device), device)


@dataclass(frozen=True)
class Dispatch:
    """An operator over a few elements in eager mode, forward and backward: the framework's floor."""

    work: float = 1.0
    family: str = "dispatch"

    def predict(self, device: Device) -> float:
        return max(device.dispatch_s, device.kernel_launch_s)


Operator = Matmul | Stream | Update | Attention | Dispatch


def _eager(seconds: float, device: Device) -> float:
    """An operator as it is measured: in eager mode."""
    return float(eager_seconds(seconds, device))


@dataclass(frozen=True)
class Axis:
    """A mesh axis that every rank has its place on: ``size`` ranks, ``stride`` apart.

    levels  the members that it has at each level of the cluster, innermost first, such as (("node", 2), ("nic", 2))
    """

    name: str
    stride: int
    size: int
    levels: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Collective:
    """One collective over every group of an axis at once.

    bytes  as the cost functions count them: of the result of an all-gather, else of what each rank holds before
    """

    kind: str
    axis: Axis
    bytes: int

    @property
    def family(self) -> str:
        return f"{self.kind} {self.axis.name}"

    @property
    def work(self) -> float:
        return float(self.bytes)


Case = Operator | Collective
AnyCase = TypeVar("AnyCase", bound=Case)


@dataclass(frozen=True)
class Sample(Generic[AnyCase]):
    """A case with the seconds that it took: the mean over the ranks, of that the median over the repetitions."""

    case: AnyCase
    seconds: float


@dataclass(frozen=True)
class Errors:
    """|predicted − measured| / measured of one kind, over points that were not fitted."""

    kind: str
    count: int
    mean: float
    maximum: float


@dataclass(frozen=True)
class Split(Generic[AnyCase]):
    """Samples in two halves: within each family every second size is fitted, the others are held out."""

    fitted: tuple[Sample[AnyCase], ...]
    held_out: tuple[Sample[AnyCase], ...] = field(default=())


def split(samples: Iterable[Sample[AnyCase]]) -> Split[AnyCase]:
    """Every second size of each family, from the largest: a rate is told best by what takes longest."""
    fitted: list[Sample[AnyCase]] = []
    held_out: list[Sample[AnyCase]] = []
    for members in by_family(samples).values():
        odd = len(members) % 2
        fitted += members[1 - odd :: 2]
        held_out += members[odd::2]
    return Split(tuple(fitted), tuple(held_out))


def by_family(samples: Iterable[Sample[AnyCase]]) -> Mapping[str, list[Sample[AnyCase]]]:
    """The samples of each family, by rising work."""
    families: dict[str, list[Sample[AnyCase]]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.case.work):
        families[sample.case.family].append(sample)
    return families


def errors(predicted: Mapping[str, Iterable[tuple[float, float]]]) -> tuple[Errors, ...]:
    """The errors of each kind from its (predicted, measured) seconds."""
    found = []
    for kind, pairs in predicted.items():
        shares = [abs(guess - truth) / truth for guess, truth in pairs]
        if shares:
            found.append(Errors(kind, len(shares), math.fsum(shares) / len(shares), max(shares)))
    return tuple(found)
