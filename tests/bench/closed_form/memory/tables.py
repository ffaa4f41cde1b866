"""The tables of bytes, and how their rows become points."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import ProfileError
from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.memory.alpa import alpa_point
from tests.bench.closed_form.memory.analytic import activation_formula_point, rmsprop_point, zero_point
from tests.bench.closed_form.memory.megatron import megatron_peak, megatron_steady
from tests.bench.closed_form.memory.torchtitan import torchtitan_point
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.result import TableResult, results_of
from tests.bench.closed_form.rows import Row, rows_of

QUANTITY = "memory, GiB"


@dataclass(frozen=True)
class MemoryTable:
    """A published file of bytes: ``point`` makes a row's point, or raises ``Unusable``; its docstring states what is
    assumed."""

    name: str
    file: str
    point: Callable[[Row], Point]


MEMORY_TABLES = (
    MemoryTable("megatron_core peak memory", "megatron_ci_curated_large.csv", megatron_peak),
    MemoryTable("megatron_core between steps", "megatron_ci_curated_large.csv", megatron_steady),
    MemoryTable("torchtitan memory", "torchtitan_llama3.csv", torchtitan_point),
    MemoryTable("alpa_gpt memory", "alpa_intraop_weak_scaling_v100.csv", alpa_point),
    MemoryTable("gpipe states", "gpipe_memory.csv", rmsprop_point),
    MemoryTable("zero states", "zero_table1_model_states.csv", zero_point),
    MemoryTable("korthikanti formulas", "korthikanti_table2_activation_formulas.csv", activation_formula_point),
)


def memory_results(folder: Path) -> tuple[TableResult, ...]:
    """The results of every table of bytes that the folder holds."""
    held = [table for table in MEMORY_TABLES if (folder / table.file).exists()]
    return tuple(result for table in held for result in _results(table, rows_of(folder / table.file)))


def _results(table: MemoryTable, rows: Sequence[Row]) -> tuple[TableResult, ...]:
    points: list[Point] = []
    reasons: list[str] = []
    for row in rows:
        try:
            points.append(table.point(row))
        except (Unusable, ProfileError) as error:
            reasons.append(str(error))
    assumption = inspect.cleandoc(table.point.__doc__ or "")
    left_out = [(count, reason) for reason, count in Counter(reasons).items()]
    return results_of(table.name, QUANTITY, points, assumption, table.file, left_out, halved=False)
