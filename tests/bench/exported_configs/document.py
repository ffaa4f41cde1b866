"""docs/appendix/exported_configs.md."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from autoplan.report.words import seconds_text
from tests.bench.exported_configs.cells import Cell, Row
from tests.support.target_parsers import PARSERS

ROOM = 110  # characters of a reason
HEAD = """# Recipes as other trainers' configurations

Recipes of [this list](recipes.md), planned as they were run, written by `plan.export_config(kind)` in the words of the
trainers whose own parser can be installed, and read by that parser:
{versions}.
Written by `make exported-configs` (`tests/bench/exported_configs`).

What a trainer has no words for is told and left out; **lost** counts these lines. What is left is planned again, which
is the price of what the trainer runs: **exported**, beside the plan's own. Then what its parser has read (axes, ZeRO,
microbatches, schedule, recomputation, offload) is planned once more: **back**. Fields that a file has no words for,
such as DeepSpeed's recomputation, stay as `lost` tells them. How a trainer splits operators and cuts stages isn't in
these prices.

"""


def document(rows: Sequence[Row]) -> str:
    head = HEAD.format(versions=", ".join(map(version, PARSERS)))
    lines = [("row", "recipe", "plan", "step", *PARSERS), ("---",) * (4 + len(PARSERS)), *map(line, rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{head}{summary(rows)}\n\n{table}\n"


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} (not installed)"


def line(row: Row) -> tuple[str, ...]:
    if row.cells is None:
        return (row.name, row.text, f"none: {short(row.reason)}", "-", *("-" for _ in PARSERS))
    told = (cell_text(row.cells[kind]) for kind in PARSERS)
    return (row.name, row.text, row.plan, seconds_text(row.step_s), *told)


def cell_text(cell: Cell) -> str:
    lost = f"{cell.lost} lost"
    if cell.absent:
        return f"{seconds_text(cell.exported_s)}, not read: not installed; {lost}"
    if cell.refused:
        return f"{short(cell.refused)}; {lost}"
    back = "back the same" if cell.same else f"BACK {seconds_text(cell.back_s)}"
    return f"accepted; {seconds_text(cell.exported_s)}, {back}; {lost}"


def short(reason: str) -> str:
    """The beginning of a reason, on one line of a table."""
    text = " ".join(reason.split()).replace("|", "/")
    return text if len(text) <= ROOM else f"{text[:ROOM].rsplit(' ', 1)[0]} …"


def summary(rows: Sequence[Row]) -> str:
    lines = [f"{sum(row.cells is not None for row in rows)} of {len(rows)} recipes have a plan as pinned.", ""]
    for kind in PARSERS:
        cells = [row.cells[kind] for row in rows if row.cells is not None]
        unfit = sum(not cell.exported_s for cell in cells)
        read = [cell for cell in cells if cell.exported_s and not cell.absent]
        accepted = [cell for cell in read if not cell.refused]
        same = sum(cell.same for cell in accepted)
        lines.append(f"- {kind}: {len(accepted)} of {len(read)} configurations accepted, {same} with the same price "
                     f"planned back; of {unfit} plans what {kind} can say doesn't fit or can't be planned")  # fmt: skip
    return "\n".join(lines)
