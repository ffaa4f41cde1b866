"""torchtitan's tables: the allocator's peak reservation, on the rank where it is greatest."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.closed_form.case import Case
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.rows import Row
from tests.bench.closed_form.tables.torchtitan import TORCHTITAN
from tests.bench.closed_form.transformer.memory import reserved_bytes

GIB = 2.0**30


def torchtitan_case(row: Row) -> Case:
    """The row's case of time, with what memory needs beside."""
    (case,) = TORCHTITAN.cases(row)
    recipe = replace(
        case.recipe, account="float32-stored", optimizer="adamw", loss="eager", regathers=False, keeps_messages=True
    )
    return replace(case, recipe=recipe)


def torchtitan_point(row: Row) -> Point:
    """The recipes of the table of times, with what memory needs beside: float32 shards and gradients (FSDP2), the loss
    in eager whatever else is compiled (torchtitan@6b03ffa3 train.py), what sequence parallelism gathers kept as the
    head's input, and the pipeline engine's buffers for all microbatches with its joined outputs. Segments of the
    allocator aren't expandable. The greatest of all stages."""
    measured = row.positive("memory_GiB_max_rank")
    case = torchtitan_case(row)
    predicted = float(reserved_bytes(case.model, case.recipe)) / GIB
    return Point(row.number, TORCHTITAN.label(row), case.group, "any", predicted, measured)
