"""The matrix as text: what stands in each cell, and docs/appendix/systems.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autoplan.search.space.systems import ASYNCHRONOUS
from autoplan.verify import STEPS
from autoplan.verify.compare import FLOAT64
from tests.bench.systems.cases import Cell
from tests.bench.systems.cells import Outcome
from tests.bench.systems.mixed import FURTHER, SURE, standard_error
from tests.bench.systems.ranks import STALE_STEPS
from tests.bench.systems.reference import GRADIENTS, LOSSES

HEAD = f"""\
# Named systems

Every named system on every model, as `make systems` printed it (torch {torch.__version__.split("+")[0]}, gloo on CPU):
planned by its name, exported to a folder, loaded from the folder by each rank, and run.

**Float64.** Relative errors, in the 2-norm, against the user's module on one device: of the loss (bound
{FLOAT64.loss:.0e}), of the worst gradient ({FLOAT64.gradients:.0e}), of the worst parameter after {STEPS} AdamW steps
({FLOAT64.parameters:.0e}). It is the plan that was made for bf16-mixed, computing in float64; the casts to float32
inside the models are widened on both sides.

**bf16-mixed.** How far the program is from float32, over how far one device in bf16-mixed is; the bound is {FURTHER}.
The distance of the losses is ‖l − l'‖ / ‖l'‖, where l has a component for each of {LOSSES} batches; that of the
gradients is ‖g − g'‖ / ‖g'‖, where g has a component for each element of each gradient on each of {GRADIENTS} batches.
The float32 run l', g' is the user's module on one device. One device in bf16-mixed is the exported program of a plan
for one rank with as many microbatches: the same operators on the same dtypes, so that what differs is the sharding
alone. All start from the same weights on each batch. Of gradients there are thousands of elements; a loss is one
rounding error a batch, so that its ratio comes with a standard error (the jackknife's, over the batches), and counts as
above the bound where it is {SURE:g} of them above.

**Asynchronous systems** don't compute what one device does. They are held to one process that follows their rule
(`tests/support/asynchronous.py`, `compressed.py`), in float64 over {STALE_STEPS} steps with a batch each: every
loss, and the parameters at the end.
"""


def matrix(outcomes: Sequence[Outcome]) -> str:
    """Systems down, models across."""
    models = list(dict.fromkeys(o.model for o in outcomes))
    cells = {(o.system, o.model): verdict(o) for o in outcomes}
    ranks = {o.system: o.ranks for o in outcomes}
    lines = [f"| system | ranks | {' | '.join(models)} |", "|---" * (2 + len(models)) + "|"]
    for system, count in ranks.items():
        row = [cells.get((system, model), "") for model in models]
        lines.append(f"| {system} | {count} | {' | '.join(row)} |")
    return "\n".join(lines)


def verdict(outcome: Outcome) -> str:
    if outcome.faults:
        return "**no**"
    return "equal to its rule" if outcome.stale else "equal"


def figures(outcomes: Sequence[Outcome]) -> str:
    """A line for each cell: the plan, and every figure that has a bound."""
    lines = [
        "| system | model | plan | loss, fp64 | gradients, fp64 | parameters, fp64 | loss, bf16 | gradients, bf16 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        exact = ["", "", ""]
        if o.exact is not None:
            exact = [f"{e.error:.0e}" if e.name else "" for e in (o.exact.loss, o.exact.gradients, o.exact.parameters)]
        mixed = ["", ""]
        if o.sharded is not None and o.single is not None:
            ours, theirs = o.sharded, o.single
            width = ours.loss / theirs.loss * standard_error(ours, theirs)
            mixed = [
                f"{ours.loss:.1e} / {theirs.loss:.1e} = {ours.loss / theirs.loss:.2f} ± {width:.2f}",
                f"{ours.gradients:.1e} / {theirs.gradients:.1e} = {ours.gradients / theirs.gradients:.2f}",
            ]
        lines.append(f"| {' | '.join([o.system, o.model, o.plan, *exact, *mixed])} |")
    return "\n".join(lines)


def failures(outcomes: Sequence[Outcome]) -> str:
    """Every bound that doesn't hold, with its figure."""
    return "\n".join(
        f"{o.system} × {o.model} ({o.plan or 'no plan'}): {fault}" for o in outcomes for fault in o.faults
    )


def tally(outcomes: Sequence[Outcome]) -> str:
    stale = [o for o in outcomes if o.stale]
    equal = [o for o in outcomes if not o.stale and o.passed]
    also = f"; {sum(o.passed for o in stale)} of {len(stale)} asynchronous ones equal their rule" if stale else ""
    return f"{len(equal)} of {len(outcomes) - len(stale)} equal one device{also}."


def document(outcomes: Sequence[Outcome]) -> str:
    parts = [HEAD, matrix(outcomes), "", tally(outcomes), "", figures(outcomes), ""]
    if wrong := failures(outcomes):
        parts += [f"```text\n{wrong}\n```", ""]
    return "\n".join(parts)


def renewed(text: str, outcomes: Sequence[Outcome], cells: Sequence[Cell]) -> str:
    """A document with rows of these outcomes, and the others as they were printed before.

    cells  the whole matrix, in its order
    """
    if wrong := failures(outcomes):
        raise SystemExit(f"nothing is written:\n{wrong}")
    head, rest = text.split("| system | ranks |", 1)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in rest.splitlines() if line[:2] == "| "]
    models = [cell.strip() for cell in rest.splitlines()[0].strip("|").split("|")]
    known = {row[0]: row[1:] for row in rows if len(row) == 2 + len(models) and row[1].isdigit()}
    lines = {tuple(row[:2]): f"| {' | '.join(row)} |" for row in rows if row[1] in models}
    for outcome, line in zip(outcomes, figures(outcomes).splitlines()[2:], strict=True):
        known.setdefault(outcome.system, [str(outcome.ranks), *[""] * len(models)])
        known[outcome.system][1 + models.index(outcome.model)] = verdict(outcome)
        lines[outcome.system, outcome.model] = line
    found = {cell: known[cell[0]][1 + models.index(cell[1])] for cell in cells if cell[0] in known}
    equal, ruled = list(found.values()).count("equal"), list(found.values()).count("equal to its rule")
    stale = sum(system in ASYNCHRONOUS for system, _ in found)
    whole = [f"| system | ranks | {' | '.join(models)} |", "|---" * (2 + len(models)) + "|"]
    whole += [f"| {system} | {' | '.join(known[system])} |" for system in dict.fromkeys(s for s, _ in found)]
    also = f"{equal} of {len(found) - stale} equal one device; {ruled} of {stale} asynchronous ones equal their rule."
    parts = [head + "\n".join(whole), "", also, "", *figures([]).splitlines()]
    return "\n".join([*parts, *(lines[cell] for cell in cells if cell in lines), ""])
