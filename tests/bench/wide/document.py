"""docs/appendix/models_wide.md: a row for each model, and what they come to."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import torch

from tests.bench.wide.catalog import MODELS
from tests.bench.wide.cells import PARALLELISMS, Cell, Row

HEAD = f"""\
# Models as people bring them

Models of libraries and hand-written ones, beside [those of `make zoo`](models.md), as `make zoo-wide` runs them (torch
{torch.__version__.split("+")[0]}). Each is small, has random weights and a batch of eight rows. Each is planned for
`1x4 cpu` under four parallelisms, exported, and run on four local ranks. In float64 the loss, every gradient, and the
parameters after three steps of AdamW are held to the module on one device, as `plan.verify()` does. Nothing in
autoplan knows a model by its name.

**export**: whether torch.export traces the module and its loss alone. **split**: the share of the forward's FLOPs that
tp=4 splits; the ranks repeat the rest.
"""


def line(row: Row) -> str:
    """A line of progress."""
    cells = "; ".join(f"{name} {told(cell)} {cell.seconds:.0f}s" for name, cell in row.cells.items())
    return f"{row.name}: export {row.exported or 'yes'}; {cells}"


def told(cell: Cell) -> str:
    if cell.equal:
        return "equal"
    return f"{'' if cell.clear else 'CRASH '}{cell.error} {cell.plan}"


def bad(row: Row) -> bool:
    """Whether a cell is neither equal nor a clear error."""
    return any(not cell.equal and (cell.plan or not cell.clear) for cell in row.cells.values())


def equal(row: Row) -> bool:
    """In every cell, but for a pipeline that a model of one part can't have."""
    return all(cell.equal or indivisible(cell) for cell in row.cells.values())


def indivisible(cell: Cell) -> bool:
    return cell.clear and "the model is a chain of 1 parts" in cell.error


def summary(rows: Sequence[Row]) -> str:
    traced = [row for row in rows if not row.exported]
    shares = [s for row in rows if (s := row.cells.get("tp=4", Cell()).split) is not None]
    both = sum(map(equal, traced))
    lines = [
        f"{len(rows)} models; torch.export traces {len(traced)} of them alone. Of those, {both} "
        f"({100 * both / max(len(traced), 1):.1f}%) are planned and equal in all cells.",
        f"Of the other {len(rows) - len(traced)}, {sum(equal(r) for r in rows if r.exported)} are planned and equal.",
        f"{sum(any(map(indivisible, row.cells.values())) for row in rows)} have one part, so no pipeline: counted "
        "without that cell.",
        f"{sum(map(bad, rows))} rows are neither equal nor a clear error.",
    ]
    if shares:
        share = 100 * sum(shares) / len(shares)
        lines.append(f"tp=4 splits {share:.1f}% of FLOPs on average over {len(shares)} plans.")
    if commits := Counter(row.commit for row in rows if row.commit):
        told = [f"`{name}` {count}" for name, count in commits.most_common()]
        lines.append(f"Rows by the commit whose sources found them: {', '.join(told)}.")
    return "\n".join(lines)


def mark(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if indivisible(cell):
        return "one part"
    return "equal" if cell.equal else "differs" if cell.plan and cell.errors else "error" if cell.clear else "**crash**"


def document(rows: Sequence[Row]) -> str:
    counts = Counter(MODELS[row.name].family for row in rows)
    parts = [HEAD, summary(rows), "", "| family | models | equal in all cells |", "|---|---|---|"]
    for family, count in counts.items():
        parts.append(f"| {family} | {count} | {sum(equal(r) for r in rows if MODELS[r.name].family == family)} |")
    parts += ["", "## Table", "", f"| model | family | export | {' | '.join(PARALLELISMS)} | split |"]
    parts.append("|---" * (4 + len(PARALLELISMS)) + "|")
    for row in rows:
        share = row.cells.get("tp=4", Cell()).split
        marks = [mark(row.cells.get(name)) for name in PARALLELISMS]
        split = "" if share is None else f"{100 * share:.0f}%"
        cells = [row.name, MODELS[row.name].family, "no" if row.exported else "yes", *marks, split]
        parts.append(f"| {' | '.join(cells)} |")
    absent = [name for name in MODELS if all(row.name != name for row in rows)]
    if absent:
        parts += ["", "## Not run", "", "Configured in `tests/bench/wide/`, without a row here yet:", ""]
        parts += textwrap.wrap(", ".join(absent) + ".", 120)
    said = [f"{row.name}: {text}" for row in rows for text in reasons(row)]
    if said:
        parts += ["", "## What isn't planned or equal, and why", "", "```text", *said, "```"]
    return "\n".join([*parts, ""])


def reasons(row: Row) -> list[str]:
    """The errors' first lines, one for all cells that say the same."""
    said: dict[str, list[str]] = {}
    for name, cell in row.cells.items():
        if not cell.equal:
            said.setdefault(cell.error, []).append(name)
    return [f"{', '.join(names) if len(names) < len(row.cells) else 'all'}: {text}" for text, names in said.items()]
