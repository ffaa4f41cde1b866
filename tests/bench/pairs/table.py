"""The pairs as a table of docs/appendix/program.md."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tests.bench.pairs.contest import COMPILED_LAYERS, Row
from tests.bench.pairs.models import Size

HEAD = """## Pairs: beside what is written by hand

Each pair trains one model on the same batch in one process group, step by step in turns: our plan's program, and what
an experienced author writes with PyTorch's own parts (`tests/bench/pairs/byhand`, one way a file). A step is forward
and backward of all microbatches, gradient sums and AdamW's update. A figure is ours over theirs:

- CPU: seconds over all ranks, gloo's threads included: the median of the rounds' ratios, and their quartiles;
- operator calls that a dispatch mode sees, views and casts among them, of what DTensors run locally;
- bytes that autograd keeps at most beside parameters and the batch, on the rank that keeps most;
- collectives and the bytes that leave the ranks, ours against theirs.

Ours does more in each step: ranks agree that their batches belong together, valid labels are counted over all ranks,
the loss is summed over them and looked at. Both sides' losses agree in the first steps; with dropout, whose masks
differ, about. What is compiled makes calls that no dispatch mode sees.
"""
ASKED, NOISE = 1.00, 1.02


def ratio(mine: int, other: int) -> str:
    return "–" if not other else f"{mine / other:.2f}"


def pairs_table(rows: Sequence[Row]) -> list[str]:
    heads = ("by hand", "model", "precision", "CPU", "quartiles", "calls", "saved bytes", "collectives", "bytes")
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|--:|---|--:|--:|--:|--:|"]
    for r in rows:
        low, middle, high = r.ratios
        messages = "{} : {}".format(*r.collectives) if any(r.collectives) else "–"
        sent = "{} : {}".format(*r.wire_bytes) if any(r.wire_bytes) else "–"
        seconds = f"{middle:.2f} | {low:.2f}–{high:.2f}"
        counts = f"{ratio(*r.calls)} | {ratio(*r.saved)} | {messages} | {sent}"
        lines.append(f"| {r.case} | {r.model} | {r.precision} | {seconds} | {counts} |")
    return lines


def above(rows: Sequence[Row]) -> list[str]:
    """What isn't as lean as by hand: seconds whose lower quartile is above 1.00, calls and bytes above 1.02."""
    found = {
        "CPU seconds": [r for r in rows if r.ratios[0] > ASKED],
        "operator calls": [r for r in rows if r.calls[0] > NOISE * r.calls[1]],
        "saved bytes": [r for r in rows if r.saved[0] > NOISE * r.saved[1]],
    }
    return [f"- {what}: {len(those)} of {len(rows)} pairs{named(those)}" for what, those in found.items()]


def named(rows: Sequence[Row]) -> str:
    return ": " + "; ".join(f"{r.case}, {r.model}, {r.precision}" for r in rows) if rows else ""


def commit() -> str:
    """Of the tree that is measured."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    ).stdout.strip()


def section(rows: Sequence[Row], size: Size, rounds: int) -> str:
    measured = (
        f"Measured on {date.today():%Y-%m-%d} at commit {commit()} on CPUs, one thread a rank, {rounds} rounds: "
        f"{size.layers} layers of {size.hidden} ({COMPILED_LAYERS} where compiled), {size.rows} rows of "
        f"{size.length} tokens a step.\n"
    )
    left = "\nPairs that stay above: seconds whose lower quartile is above 1.00, calls and bytes above 1.02.\n"
    return "\n".join([HEAD, measured, *pairs_table(rows), left, *above(rows)]) + "\n"
