"""docs/appendix/models_wide.md: a row for each model, and what they come to."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import torch

from tests.bench.wide.catalog import MODELS
from tests.bench.wide.cells import PARALLELISMS, Cell, Row
from tests.bench.wide.page import Line

HEAD = f"""\
# Models as people bring them

Models of libraries and hand-written ones, beside [those of `make zoo`](models.md), as `make zoo-wide` runs them (torch
{torch.__version__.split("+")[0]}). Each is small, has random weights and a batch of eight rows. Each is planned for
`1x4 cpu` under four parallelisms, exported, and run on four local ranks. In float64 the loss, every gradient, and the
parameters after three steps of AdamW are held to the module on one device, as `plan.verify()` does. Nothing in
autoplan knows a model by its name.

**export**: whether torch.export traces the module and its loss alone. **split**: the share of the forward's FLOPs that
tp=4 splits; the ranks repeat the rest. **found at**: the commit whose sources a row was found by. A row stays until the
model is run again.
"""


def progress(row: Row) -> str:
    """A line of progress."""
    cells = "; ".join(f"{name} {told(cell)} {cell.seconds:.0f}s" for name, cell in row.cells.items())
    return f"{row.name}: export {row.exported or 'yes'}; {cells}"


def told(cell: Cell) -> str:
    if cell.equal:
        return "equal"
    return f"{'' if cell.clear else 'CRASH '}{cell.error} {cell.plan}"


def summary(lines: Sequence[Line]) -> str:
    traced = [line for line in lines if line.exported]
    shares = [line.split for line in lines if line.split is not None]
    both = sum(line.equal for line in traced)
    said = [
        f"{len(lines)} models; torch.export traces {len(traced)} of them alone. Of those, {both} "
        f"({100 * both / max(len(traced), 1):.1f}%) are planned and equal in all cells.",
        f"Of the other {len(lines) - len(traced)}, {sum(line.equal for line in lines if not line.exported)} are "
        "planned and equal.",
        f"{sum(line.one_part for line in lines)} have one part, so no pipeline: counted without that cell.",
        f"{sum(line.bad for line in lines)} rows are neither equal nor a clear error.",
    ]
    if shares:
        said.append(f"tp=4 splits {sum(shares) / len(shares):.1f}% of FLOPs on average over {len(shares)} plans.")
    return "\n".join(said)


def document(lines: Sequence[Line]) -> str:
    """The page of these, in the catalog's order."""
    counts = Counter(line.family for line in lines)
    parts = [HEAD, summary(lines), "", "| family | models | equal in all cells |", "|---|---|---|"]
    for family, count in counts.items():
        parts.append(f"| {family} | {count} | {sum(line.equal for line in lines if line.family == family)} |")
    parts += ["", "## Table", "", f"| model | family | export | {' | '.join(PARALLELISMS)} | split | found at |"]
    parts.append("|---" * (5 + len(PARALLELISMS)) + "|")
    parts += map(str, lines)
    names = {line.name for line in lines}
    if absent := [name for name in MODELS if name not in names]:
        parts += ["", "## Not run", "", "Configured in `tests/bench/wide/`, without a row here yet:", ""]
        parts += textwrap.wrap(", ".join(absent) + ".", 120)
    if said := [f"{line.name}: {text}" for line in lines for text in line.reasons]:
        parts += ["", "## What isn't planned or equal, and why", "", "```text", *said, "```"]
    return "\n".join([*parts, ""])
