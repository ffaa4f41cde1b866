"""All parts, by name, in their order: ``predicted`` reads what ``calibrated`` and ``measured`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.bench.gpu import calibrated, correctness, kernels, measured, one_rank, predicted, profiled
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting


@dataclass(frozen=True)
class Part:
    """prepare makes its plans, which needs no device; device: whether ``run`` needs one."""

    run: Callable[[Setting], Result]
    prepare: Callable[[Setting], None] | None = None
    device: bool = True


PARTS: Mapping[str, Part] = {
    "correctness": Part(correctness.run, correctness.prepare), "calibrated": Part(calibrated.run),
    "measured": Part(measured.run, measured.prepare), "one-rank": Part(one_rank.run, one_rank.prepare),
    "trace": Part(profiled.run, profiled.prepare), "kernels": Part(kernels.run),
    "predicted": Part(predicted.run, device=False),
}  # fmt: skip
LIMIT_S = 600.0  # of each on a device
