"""The measured rows as text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.memory.cases import CASES
from tests.bench.memory.measured import Row

MB = 1e6


def lines(row: Row) -> list[str]:
    """One line for each rank."""
    return [
        f"{row.name:26s} rank {number}  predicted {rank.predicted / MB:7.1f} MB ({rank.off:+.1%})  rehearsed "
        f"{rank.rehearsed / MB:7.1f} MB ({rank.rehearsed_off:+.2%})  tensors {rank.tensors / MB:7.1f} MB  resident "
        f"{rank.resident / MB:7.1f} MB"
        for number, rank in enumerate(row.ranks)
    ]


TITLE = "# Peak memory: measured beside predicted and rehearsed"
TEXT = (
    "Written by `make bench-memory`. Four processes on a CPU, eager. *Tensors*: bytes of all storages alive, at "
    "most, in a step and its update, followed from operator to operator. *Rehearsed*: what `plan.rehearse()` finds "
    "of the same program. Both are told of the rank furthest off. *Resident*: pages of that rank's process, at "
    "most, over those before the program was loaded; kernels' and collectives' own buffers, Python and libraries "
    "among them."
)
MIXTURES = (
    "A mixture is planned and rehearsed with tokens that choose their experts evenly and each for itself, and so it is "
    "measured: attention and experts add nothing at first, so that a router sees a token's embedding alone. An "
    "untrained model's router sends some ranks more than that, which no plan knows: two rows have one."
)
HEADER = ("plan", "", "tensors", "predicted", "off by", "rehearsed", "off by", "resident")
PREDICTED, REHEARSED = 4, 6
"""Columns of what either is off by."""


def row_of(row: Row) -> str:
    """A line of the table."""
    rank = max(row.ranks, key=lambda rank: max(abs(rank.off), abs(rank.rehearsed_off)))
    figures = rank.tensors, rank.predicted, rank.rehearsed, rank.resident
    tensors, predicted, rehearsed, resident = (f"{figure / MB:.1f} MB" for figure in figures)
    cells = (tensors, predicted, f"{rank.off:+.1%}", rehearsed, f"{rank.rehearsed_off:+.2%}", resident)
    return f"| {row.name} | `{row.plan}` | {' | '.join(cells)} |"


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows_of(text: str) -> dict[str, str]:
    """The lines of a document's table, by the plans that were run."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return {cells_of(line)[0]: line for line in lines if cells_of(line)[0] != HEADER[0]}


def document(rows: Mapping[str, str]) -> str:
    """docs/appendix/memory.md, of the lines of plans by name: in the order of the cases, without those that are none
    any more."""
    known = {name: rows[name] for name in CASES if name in rows}
    lines = [TITLE, "", TEXT, "", MIXTURES, "", f"| {' | '.join(HEADER)} |", "|---|---|" + "--:|" * (len(HEADER) - 2)]
    lines += [*known.values(), "", f"{len(known)} plans. {furthest(known, untrained=False)}"]
    if any(CASES[name].untrained for name in known):
        lines[-1] += f" {furthest(known, untrained=True)}"
    return "\n".join([*lines, ""])


def furthest(rows: Mapping[str, str], *, untrained: bool) -> str:
    some = [cells_of(line) for name, line in rows.items() if CASES[name].untrained == untrained]
    worst = [max((cells[at] for cells in some), key=off_of, default="none") for at in (PREDICTED, REHEARSED)]
    of = "With untrained routers" if untrained else "Furthest off"
    return f"{of}: predicted {worst[0]}, rehearsed {worst[1]}."


def off_of(cell: str) -> float:
    """"-1.6%" -> 1.6"""
    return abs(float(cell.strip("%")))
