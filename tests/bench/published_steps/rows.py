"""The published rows that are planned: whose question each is, and what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoplan.cluster import ClusterSpec
from cost_models.errors import ProfileError
from cost_models.transformer.memory import reserved_bytes, stages_bytes
from cost_models.validation.case import Case, Unusable
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
    """Peaks: of Megatron-LM's last rank, and of torchtitan's fullest."""
    for row in read(folder / MEGATRON_CORE.file):
        try:
            yield golden(row)
        except (Unusable, ProfileError):
            continue
    for row in read(folder / TORCHTITAN.file):
        if row.get("memory_GiB_max_rank"):
            case = torchtitan_case(row)
            yield Published(
                TITAN_BYTES, row.number, TORCHTITAN.label(row), case.group, case.device, asked(case),
                row.positive("memory_GiB_max_rank") * GIB, float(reserved_bytes(case.model, case.recipe)), FULLEST,
            )  # fmt: skip


def read(path: Path) -> tuple[Row, ...]:
    return rows_of(path) if path.exists() else ()


def golden(row: Row) -> Published:
    """A measured peak of Megatron-LM's continuous integration; ``Unusable`` where the row's recipe isn't known."""
    model, recipe = setup(row)
    device = DEVICES[row["hw"]]
    within = min(recipe.devices, 4 if device == "gb200" else 8)
    cluster = ClusterSpec(recipe.devices // within, within, device)
    try:
        question: Job | str = job_on(model, recipe, cluster)
    except NotPlannable as reason:
        question = str(reason)
    label = f"{row['case']} on {row['hw']}"
    measured = row.positive("mem_max_allocated_GiB") * GIB
    closed = float(stages_bytes(model, recipe)[-1].peak_bytes)
    return Published(GOLDENS, row.number, label, row["case"], device, question, measured, closed, LAST)
