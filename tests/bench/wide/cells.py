"""One model of the table: traced once, planned under each parallelism, run on four ranks and held to one device."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch
from torch import nn

import autoplan.verify
from autoplan.api import plan_of, source_of
from autoplan.cluster import ClusterSpec
from autoplan.compile import asked_of
from autoplan.errors import AutoplanError
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.trace.batch_binding import WithLoss, bind
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.sharded import in_pool, on_local_ranks
from autoplan.verify.verification import Verification
from tests.bench.wide.model import Batch, Brought
from tests.bench.wide.split import split_share
from tests.support.planning import alone

CLUSTER = ClusterSpec.of("1x4 cpu")
RANKS = 4
PARALLELISMS: dict[str, Parallelism | str] = {
    "auto": "auto",
    "ddp": "ddp",
    "tp=4": Parallelism(tp=4),
    "pp=2 tp=2": Parallelism(pp=2, tp=2),
}
TRAINING = Training(optimizer="adamw", learning_rate=1e-3, clip_grad_norm=None)


@dataclass(frozen=True)
class Cell:
    """What became of a model under one parallelism.

    plan    in one line; "" where there is none
    equal   whether it equals one device within verify's bounds
    errors  of loss, worst gradient and worst parameter
    error   why there is no plan, or no equality; its first line
    clear   whether that is an AutoplanError, which names value, cause and remedy
    split   under tp=4, the share of FLOPs that the tensor axis splits
    """

    plan: str = ""
    equal: bool = False
    errors: tuple[float, ...] = ()
    error: str = ""
    clear: bool = True
    split: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """A model's cells by parallelism.

    exported  "" where torch.export traces the module alone, else the error's first line
    commit    whose sources found it
    """

    name: str
    exported: str = ""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    commit: str = ""


def check(model: Brought, parallelisms: Mapping[str, Parallelism | str]) -> Row:
    """All cells of one model; what goes wrong on the way is a cell's outcome, too."""
    try:
        module, batch, loss_fn = model.made()
    except Exception as error:  # the library's: the table tells it
        failed = Cell(error=f"not built: {told(error)}", clear=False)
        return Row(model.name, failed.error, dict.fromkeys(parallelisms, failed))
    exported = exported_alone(*model.made())
    start = time.perf_counter()
    try:
        source = source_of(module, batch, loss_fn, RANKS)
        traced = source.traced(TRAINING)
    except Exception as error:
        failed = Cell(error=told(error), clear=isinstance(error, AutoplanError), seconds=time.perf_counter() - start)
        return Row(model.name, exported, dict.fromkeys(parallelisms, failed))

    def planned(asked: Parallelism | str) -> Plan:
        with alone():
            return plan_of(source, traced, CLUSTER, TRAINING, asked_of(asked, (), TRAINING, "fast"))

    with RankPool(RANKS, timeout_s=240) as pool:
        cells = {name: cell(pool, lambda asked=asked: planned(asked), batch, name) for name,
        asked in parallelisms.items()}
    return Row(model.name, exported, cells)


def cell(pool: RankPool, planned: Callable[[], Plan], batch: Batch, name: str) -> Cell:
    start, found = time.perf_counter(), Cell()
    try:
        plan = planned()
        found = replace(found, plan=str(plan), split=split_share(plan.record) if name == "tp=4" else None)
        with patch.object(autoplan.verify, "on_local_ranks", on_these(pool)):
            result = plan.verify(raises=False, batch=batch)
        assert isinstance(result, Verification)
        worst = tuple(one.error for _, one, _, _ in result.lines())
        found = replace(found, equal=result.passed, errors=worst, error="" if result.passed else shortened(str(result)))
    except Exception as error:
        found = replace(found, error=told(error), clear=isinstance(error, AutoplanError))
    return replace(found, seconds=time.perf_counter() - start)


def on_these(pool: RankPool) -> Callable[..., object]:
    """The plan on the pool's ranks, and one device's program, where that is the reference, on a rank of its own."""

    def run(record: PlanRecord, *arguments: object) -> object:
        if record.chosen.mesh.devices == RANKS:
            return in_pool(pool, record, *arguments)  # type: ignore[arg-type]
        return on_local_ranks(record, *arguments)  # type: ignore[arg-type]

    return run


def exported_alone(module: nn.Module, batch: Batch, loss_fn: Callable | None) -> str:
    """Whether torch.export traces the module and its loss, with nothing of autoplan's but the batch's names."""
    values = tuple(batch.values()) if isinstance(batch, Mapping) else batch
    try:
        bound = WithLoss(copy.deepcopy(module), bind(module, batch, loss_fn), loss_fn, training=True)
        torch.export.export(bound, values, strict=False)
    except Exception as error:
        return told(error)
    return ""


def told(error: BaseException) -> str:
    """The error's kind and first line."""
    lines = str(error).strip().splitlines() or [""]
    return shortened(f"{type(error).__name__}: {lines[0]}")


def shortened(text: str) -> str:
    """In one line, without where this machine keeps libraries."""
    text = re.sub(r"[^\s'\"(]*/(site-packages/|(?=tests/))", "", " ".join(text.split()))
    return text if len(text) <= 400 else f"{text[:400]} …"

