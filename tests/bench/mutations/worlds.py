"""Small plans of several kinds, exported and rehearsed: what faults are put into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from autoplan.export.folder import program_spec
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.rehearsal import rehearse
from autoplan.rehearsal.pricing.priced_plan import PlanPrices
from autoplan.rehearsal.rank_classes import rank_classes
from autoplan.rehearsal.records import RankClass, RankTrace
from tests.support.planning import parallelize_unproved
from tests.support.rehearsed_llama import LENGTH, ROWS, TRAINING, llama, mixtral

PLANS: Mapping[str, tuple[int, bool, Parallelism]] = {
    "1f1b, tensor": (4, False, Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b")),
    "1f1b, zero 1": (4, False, Parallelism(dp=2, tp=1, pp=2, zero=1, micro_batch=1, pipeline_schedule="1f1b")),
    "tensor, zero 3": (4, False, Parallelism(dp=2, tp=2, pp=1, zero=3, micro_batch=2)),
    "sequence": (4, False, Parallelism(dp=1, tp=4, pp=1, micro_batch=4, sequence_parallel=True)),
    "1f1b, chunks": (
        4, False,
        Parallelism(
            dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b", sequence_parallel=True, tp_overlap=2,
        ),
    ),
    "interleaved": (
        2, False,
        Parallelism(dp=1, tp=1, pp=2, micro_batch=2, pipeline_schedule="interleaved", virtual_stages=2),
    ),
    "ring": (4, False, Parallelism(dp=1, cp=4, tp=1, pp=1, micro_batch=4, cp_attention="ring")),
    "experts": (4, True, Parallelism(dp=4, ep=2, tp=1, pp=1, zero=1, micro_batch=2)),
}  # fmt: skip
"""(devices, whether it is a mixture of experts, what is pinned)"""


@dataclass(frozen=True)
class Rehearsed:
    """A plan's ranks by classes, and what the first of each issued, operator by operator."""

    name: str
    folder: Path
    record: PlanRecord
    prices: PlanPrices
    classes: tuple[RankClass, ...]
    traces: tuple[RankTrace, ...]

    @property
    def devices(self) -> int:
        return self.prices.lowered.mesh.devices


def rehearsed(name: str, folder: Path) -> Rehearsed:
    """Plans, exports and rehearses one of ``PLANS``."""
    devices, experts, pinned = PLANS[name]
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    plan = parallelize_unproved(
        mixtral(2) if experts else llama(4), f"1x{devices} h100-sxm", {"input_ids": ids, "labels": ids},
        training=TRAINING, parallelism=pinned, effort="fast",
    )  # fmt: skip
    plan.export(folder)
    classes = rank_classes(program_spec(plan.record, folder))
    return Rehearsed(
        name, folder, plan.record, PlanPrices.of(plan.record), classes, traces_of(folder, [c.first for c in classes])
    )


def traces_of(folder: Path, ranks: Sequence[int]) -> tuple[RankTrace, ...]:
    """AssertionError where a rank breaks off."""
    found = rehearse.each_apart([(folder, rank, None, False) for rank in ranks])
    broken = [trace for trace in found if isinstance(trace, str)]
    assert not broken, broken
    return tuple(trace for trace in found if not isinstance(trace, str))
