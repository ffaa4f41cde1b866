"""Memory walls: the capacity of a device swept from the least that fits to ample, in twenty steps."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field, replace

import pytest

import autoplan.rules  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError
from autoplan.graph import Model
from autoplan.options import Parallelism, Training
from autoplan.search import search
from tests.hand_made import llama, mlp

STEPS = 20
AMPLE = 10**15  # bytes


@dataclass(frozen=True)
class Case:
    model: Model
    cluster: str
    training: Training = field(default_factory=Training)
    parallelism: Parallelism = field(default_factory=Parallelism)


@dataclass(frozen=True)
class Planned:
    """One plan under one wall; ``cpu_s`` of the process that searched for it."""

    wall: int
    step_s: float
    peak_bytes: int
    cpu_s: float


def planned(case: Case, wall: int) -> Planned | None:
    """None where nothing fits."""
    cluster = replace(ClusterSpec.parse(case.cluster), memory_bytes=wall)
    start = time.process_time()
    try:
        chosen, _, _ = search(case.model, cluster, case.training, case.parallelism)
    except DoesNotFitError:
        return None
    cpu_s = time.process_time() - start
    predicted = chosen.predicted
    return Planned(wall, predicted.step_time_s, max(m.total for m in predicted.peak_bytes), cpu_s)


def least(case: Case, ample: int) -> int:
    """A wall, to a percent the lowest, under which something fits; by bisection, taking nobody's word."""
    low, high = 0, ample
    while high > 1.01 * low:
        middle = (low + high) // 2
        low, high = (low, middle) if planned(case, middle) is not None else (middle, high)
    return high


def sweep(case: Case) -> list[Planned]:
    """Plans under twenty walls in geometric steps, the tightest first, the loosest one measured twice."""
    loosest = planned(case, AMPLE)
    assert loosest is not None
    low, high = least(case, loosest.peak_bytes), loosest.peak_bytes * 1.02
    walls = [round(low * (high / low) ** (i / (STEPS - 1))) for i in range(STEPS)]
    found = [planned(case, wall) for wall in walls]
    assert all(found), "what fits under a wall fits under a higher one"
    return [one for one in found if one is not None]


CASES = {
    "mlp": Case(mlp(batch=8, layers=6), "1x4 cpu", parallelism=Parallelism(tp=1)),
    "llama": Case(llama(batch=4, seq=32, layers=6), "1x4 cpu", parallelism=Parallelism(zero=0, tp=1)),
}
LARGER = {
    "mlp, anything": Case(mlp(batch=8, layers=6), "1x4 cpu"),
    "llama, anything": Case(llama(batch=4, seq=32, layers=6), "1x4 cpu"),
    "llama on nodes": Case(
        llama(batch=32, seq=1024, hidden=2048, ffn=5632, heads=16, kv=8, vocab=32000, layers=16, dtype="bfloat16"),
        "2x8 h100-sxm", Training(precision="bf16-mixed"),
    ),
}  # fmt: skip


def check(found: list[Planned]) -> None:
    assert all(one.peak_bytes <= one.wall for one in found)
    for tighter, looser in itertools.pairwise(found):
        assert looser.step_s <= tighter.step_s * (1 + 1e-12), f"slower with {looser.wall} bytes than {tighter.wall}"
    assert found[0].step_s > found[-1].step_s, "the sweep never reached a wall"
    loosest_s = found[-1].cpu_s
    assert max(one.cpu_s for one in found) <= 3 * loosest_s + 0.1  # collecting garbage falls where it will


@pytest.mark.parametrize("name", CASES)
def test_more_memory_never_costs_time(name: str) -> None:
    check(sweep(CASES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_more_memory_never_costs_time_on_any_mesh(name: str) -> None:
    check(sweep(LARGER[name]))
