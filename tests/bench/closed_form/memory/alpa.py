"""Alpa's GPT on V100s: what XLA's compiled program takes."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.rows import Row
from tests.bench.closed_form.tables.alpa import run_of
from tests.bench.closed_form.transformer.memory import peak_bytes

GIB = 2.0**30


def alpa_point(row: Row) -> Point:
    """GPT in float16 without recomputation or dropout, attention unfused, elementwise chains fused, Adam, the embedding
    tied (as params_B counts). Data parallelism, ZeRO-2, and any method on one device. Rows that ran out of memory state
    what the compiler asked for. GB is 2^30 bytes. Mixtures and convolutions aren't priced."""
    model, recipe = run_of(row)
    predicted = float(peak_bytes(replace(model, positions="none"), recipe)) / GIB
    method = row["method"]
    label = f"{method} on {recipe.data}: {row['config']}"
    return Point(row.number, label, method, "any", predicted, row.positive("alloc_mem_GB"))
