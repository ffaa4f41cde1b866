"""The published rows that are planned: whose question each is, and what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autoplan.cluster import ClusterSpec
from cost_models.errors import ProfileError
from tests.bench.closed_form.case import Case, Unusable
from tests.bench.closed_form.halves import split
from tests.bench.closed_form.memory.megatron import setup
from tests.bench.closed_form.memory.torchtitan import torchtitan_case
from tests.bench.closed_form.predict import predicted_s
from tests.bench.closed_form.published import SHIPPED
from tests.bench.closed_form.rows import Row, Table, read_table, rows_of
from tests.bench.closed_form.tables.alpa import ALPA, out_of_memory
from tests.bench.closed_form.tables.alpa import asked as alpa_case
from tests.bench.closed_form.tables.fsdp import MPT
from tests.bench.closed_form.tables.megatron import KORTHIKANTI_STEPS, MEGATRON_2020, VTRAIN
from tests.bench.closed_form.tables.megatron_core import DEVICES, MEGATRON_CORE
from tests.bench.closed_form.tables.sc21 import SC21_PTDP, SC21_WEAK_SCALING, SC21_ZERO
from tests.bench.closed_form.tables.torchtitan import TORCHTITAN, TORCHTITAN_FURTHER
from tests.bench.closed_form.transformer.memory import stages_bytes
from tests.bench.published_steps.job import Job, NotPlannable, job_of, job_on

TABLES = (
    SC21_WEAK_SCALING, SC21_PTDP, SC21_ZERO, KORTHIKANTI_STEPS, MEGATRON_2020, MPT, TORCHTITAN, TORCHTITAN_FURTHER,
    MEGATRON_CORE, VTRAIN, ALPA,
)  # fmt: skip
GOLDENS, TITAN_BYTES = "megatron_core memory", "torchtitan memory"
NO_MEMORY = "out of memory"
GIB = 2.0**30
LAST, FULLEST = "last", "fullest"


@dataclass(frozen=True)
class Published:
    """A row.

    family   the table, or of bytes the table and "memory"
    asked    its question, or why there is none
    measured seconds, or bytes of one rank; NaN where it ran out of memory
    closed   what the closed form says of it, in the same unit
    rank     of bytes: whose they are, LAST or FULLEST; "" of seconds
    beside   of bytes: what was measured beside tensors, which a plan's peak doesn't have
    fitted   whether figures of its device may have been fitted on it
    """

    family: str
    row: int
    label: str
    group: str
    device: str
    asked: Job | str
    measured: float
    closed: float
    rank: str = ""
    beside: float = 0.0
    fitted: bool = False

    @property
    def ran(self) -> bool:
        return not math.isnan(self.measured)


def published(folder: Path) -> list[Published]:
    """Every row of the folder's tables that a step or its peak was measured of."""
    found = [row for table in TABLES for row in of_table(table, folder)]
    return [*found, *of_bytes(folder), *out_of_memory_rows(folder)]


def of_table(table: Table, folder: Path) -> Iterator[Published]:
    path = (SHIPPED if table.shipped else folder) / table.file
    if not path.exists():
        return
    cases = read_table(table, rows_of(path)).cases
    fitted: set[int] = set()
    for device in {case.device for case in cases}:
        halves = split(case for case in cases if case.device == device)
        fitted |= {case.row for case in halves[0]} if table.fitted else set()
    for case in cases:
        yield Published(
            table.name, case.row, case.label, case.group, case.device, asked(case), case.measured_s, predicted_s(case),
            fitted=case.row in fitted,
        )  # fmt: skip


def out_of_memory_rows(folder: Path) -> Iterator[Published]:
    """Rows that say so in place of a time. bigscience's two aren't asked: what they swept isn't stated of them."""
    for row in read(folder / ALPA.file):
        try:
            case = alpa_case(row)
        except Unusable:
            continue
        if out_of_memory(row):
            yield Published(
                NO_MEMORY, row.number, ALPA.label(row), case.group, case.device, asked(case), math.nan, math.nan
            )


def asked(case: Case) -> Job | str:
    try:
        return job_of(case)
    except NotPlannable as reason:
        return str(reason)


def of_bytes(folder: Path) -> Iterator[Published]:
    """Peaks: of Megatron-LM's last rank, and of torchtitan's fullest.

    All are asked of eager mode. A kernel of Transformer Engine keeps what its operators keep, where a compiled block
    makes again what is cheap; and torchtitan's loss, which is most of its peak, isn't compiled.
    """
    for row in read(folder / MEGATRON_CORE.file):
        try:
            yield golden(row)
        except (Unusable, ProfileError):
            continue
    for row in read(folder / TORCHTITAN.file):
        if row.get("memory_GiB_max_rank"):
            yield reservation(row)


def reservation(row: Row) -> Published:
    """torchtitan's figure is what the allocator took: the closed form says what of it no tensor has."""
    case = torchtitan_case(row)
    fullest = max(stages_bytes(case.model, case.recipe), key=lambda stage: float(stage.reserved_bytes))
    reserved = float(fullest.reserved_bytes)
    return Published(
        TITAN_BYTES, row.number, TORCHTITAN.label(row), case.group, case.device, asked(in_eager(case)),
        row.positive("memory_GiB_max_rank") * GIB, reserved, FULLEST, reserved - float(fullest.peak_bytes),
    )  # fmt: skip


def in_eager(case: Case) -> Case:
    return replace(case, recipe=replace(case.recipe, compiled=False))


def read(path: Path) -> tuple[Row, ...]:
    return rows_of(path) if path.exists() else ()


def golden(row: Row) -> Published:
    """A measured peak of Megatron-LM's continuous integration; ``Unusable`` where the row's recipe isn't known."""
    model, recipe = setup(row)
    device = DEVICES[row["hw"]]
    within = min(recipe.devices, 4 if device == "gb200" else 8)
    cluster = ClusterSpec(recipe.devices // within, within, device)
    try:
        question: Job | str = job_on(model, replace(recipe, compiled=False), cluster)
    except NotPlannable as reason:
        question = str(reason)
    label = f"{row['case']} on {row['hw']}"
    measured = row.positive("mem_max_allocated_GiB") * GIB
    closed = float(stages_bytes(model, recipe)[-1].peak_bytes)
    return Published(GOLDENS, row.number, label, row["case"], device, question, measured, closed, LAST)
