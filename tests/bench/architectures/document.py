"""The table as text: what stands in each cell, and docs/appendix/models.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import torch
import transformers

from autoplan.verify.compare import FLOAT64, Worst
from tests.bench.architectures.catalog import ARCHITECTURES
from tests.bench.architectures.cells import CLUSTER, FLOAT32, PARALLELISMS, Outcome

HEAD = f"""\
# Models

Architectures of transformers {transformers.__version__}, unmodified, as `make zoo` runs them (torch
{torch.__version__.split("+")[0]}, gloo on CPU); `python -m tests.bench.architectures --only NAME --keep FOLDER --write
docs/appendix/models.md` runs some, `--float64-only` spares torchrun. Each is built small from its
configuration with random weights, traced on the meta device, planned for `{CLUSTER}` under each parallelism,
exported to a folder, loaded from it by four ranks, and run on a batch of eight rows whose labels
hold -100 unevenly. Nothing in autoplan knows an architecture by its name.

**Float64**: relative errors, in the 2-norm, of the loss and of the worst gradient against the user's module on one
device; both bounds are {FLOAT64.loss:.0e}. **Float32**: the same plans under torchrun, against the module in float32;
both bounds are {FLOAT32.gradients:.0e}. A gradient that is zero in float64 (a key projection's bias, which softmax
doesn't see) is measured against the global norm. "equal" is so in both, "equal, fp64" wasn't run in float32.
"""


def table(outcomes: Sequence[Outcome]) -> str:
    """Architectures down, parallelisms across."""
    names = list(dict.fromkeys(o.architecture for o in outcomes))
    columns = [name for name in PARALLELISMS if any(o.parallelism == name for o in outcomes)]
    cells = {(o.architecture, o.parallelism): verdict(o) for o in outcomes}
    lines = [f"| architecture | kind | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for name in names:
        row = [cells.get((name, column), "") for column in columns]
        lines.append(f"| {name} | {ARCHITECTURES[name].kind} | {' | '.join(row)} |")
    return "\n".join(lines)


def verdict(outcome: Outcome) -> str:
    if outcome.faults:
        return "**no**"
    return "equal" if outcome.single is not None else "equal, fp64"


def figures(outcomes: Sequence[Outcome]) -> str:
    """A line for each cell: the plan, and every figure that has a bound."""
    lines = [
        "| architecture | parallelism | plan | loss, fp64 | gradients, fp64 | loss, fp32 | gradients, fp32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        lines.append(f"| {' | '.join([o.architecture, o.parallelism, o.plan, *pair(o.exact), *pair(o.single)])} |")
    return "\n".join(lines)


def pair(found: tuple[Worst, Worst] | None) -> list[str]:
    return ["", ""] if found is None else [f"{worst.error:.0e}" for worst in found]


def failures(outcomes: Sequence[Outcome]) -> str:
    """Why, for each cell that isn't equal."""
    return "\n".join(
        f"{o.architecture} under {o.parallelism} ({o.plan or 'no plan'}): {fault}"
        for o in outcomes
        for fault in o.faults
    )


def tally(outcomes: Sequence[Outcome]) -> str:
    wrong = {o.architecture for o in outcomes if o.faults}
    names = {o.architecture for o in outcomes}
    equal = sum(not o.faults for o in outcomes)
    return f"{equal} of {len(outcomes)} cells and {len(names - wrong)} of {len(names)} architectures equal one device."


def document(outcomes: Sequence[Outcome]) -> str:
    listed = [o for o in outcomes if ARCHITECTURES[o.architecture].listed]
    further = [o for o in outcomes if not ARCHITECTURES[o.architecture].listed]
    parts = [HEAD, table(listed), "", tally(listed), ""]
    if further:
        parts += ["## Further ones", "", table(further), "", tally(further), ""]
    if wrong := failures(outcomes):
        parts += ["## What isn't equal, and why", "", f"```text\n{wrong}\n```", ""]
    if absent := [name for name in ARCHITECTURES if all(o.architecture != name for o in outcomes)]:
        parts += ["## Not run", "", "Configured in `tests/bench/architectures/`, without a row here yet:", ""]
        parts += [*textwrap.wrap(", ".join(absent) + ".", 120), ""]
    return "\n".join([*parts, "## Figures", "", figures(outcomes), ""])
