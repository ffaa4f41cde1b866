"""All parts, by name, in their order: ``predicted`` reads the profile that ``calibrated`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.bench.gpu import calibrated, correctness, one_rank, predicted, profiled
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

PARTS: Mapping[str, Callable[[Setting], Result]] = {
    "correctness": correctness.run, "one-rank": one_rank.run, "calibrated": calibrated.run,
    "predicted": predicted.run, "trace": profiled.run,
}  # fmt: skip
LIMIT_S = 600.0  # of each
