"""The measured rows as text."""

from __future__ import annotations

from collections.abc import Sequence

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


def document(rows: Sequence[Row]) -> str:
    """docs/appendix/memory.md."""
    text = [
        "# Peak memory: measured beside predicted and rehearsed",
        "",
        "Written by `make bench-memory`. Four processes on a CPU, eager. *Tensors*: bytes of all storages alive, at "
        "most, in a step and its update, followed from operator to operator. *Rehearsed*: what `plan.rehearse()` finds "
        "of the same program. Both are told of the rank furthest off. *Resident*: pages of that rank's process, at "
        "most, over those before the program was loaded; kernels' and collectives' own buffers, Python and libraries "
        "among them.",
        "",
        "| plan | | tensors | predicted | off by | rehearsed | off by | resident |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        rank = max(row.ranks, key=lambda rank: max(abs(rank.off), abs(rank.rehearsed_off)))
        figures = rank.tensors, rank.predicted, rank.rehearsed, rank.resident
        tensors, predicted, rehearsed, resident = (f"{figure / MB:.1f} MB" for figure in figures)
        text.append(
            f"| {row.name} | `{row.plan}` | {tensors} | {predicted} | {rank.off:+.1%} | {rehearsed} "
            f"| {rank.rehearsed_off:+.2%} | {resident} |"
        )
    worst = max((row.worst for row in rows), key=abs)
    worst_rehearsed = max((row.worst_rehearsed for row in rows), key=abs)
    text += ["", f"{len(rows)} plans. Furthest off: predicted {worst:+.1%}, rehearsed {worst_rehearsed:+.2%}.", ""]
    return "\n".join(text)
