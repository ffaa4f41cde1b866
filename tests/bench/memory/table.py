"""The measured rows as text."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.memory.measured import Row

MB = 1e6


def lines(row: Row) -> list[str]:
    """One line for each rank."""
    return [
        f"{row.name:26s} rank {number}  predicted {rank.predicted / MB:7.1f} MB  tensors {rank.tensors / MB:7.1f} MB "
        f"({rank.off:+.1%})  resident {rank.resident / MB:7.1f} MB"
        for number, rank in enumerate(row.ranks)
    ]


def document(rows: Sequence[Row]) -> str:
    """docs/appendix/memory.md."""
    text = [
        "# Peak memory: measured beside predicted",
        "",
        "Written by `make bench-memory`. Four processes on a CPU, eager. *Tensors*: bytes of all storages alive, at "
        "most, in a step and its update, followed from operator to operator. *Resident*: pages of the process, at "
        "most, over those before the program was loaded; kernels' and collectives' own buffers, Python and libraries "
        "among them.",
        "",
        "| plan | rank | predicted | tensors | off by | resident |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for number, rank in enumerate(row.ranks):
            text.append(
                f"| {row.name}: `{row.plan}` | {number} | {rank.predicted / MB:.1f} MB | {rank.tensors / MB:.1f} MB "
                f"| {rank.off:+.1%} | {rank.resident / MB:.1f} MB |"
            )
    worst = max((row.worst for row in rows), key=abs)
    text += ["", f"Furthest off: {worst:+.1%}.", ""]
    return "\n".join(text)
