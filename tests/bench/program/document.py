"""docs/appendix/program.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.program.counts import Row
from tests.bench.program.dropout import P, Pair

HEAD = """# The emitted program beside the module

What a plan's program costs beside the module run by hand. `make bench-program` writes this page.

## Operator calls and saved bytes

One step on one rank, forward and backward, of small models with two layers: the emitted `program.py` beside the module
itself, in eager mode. Calls are all that a dispatch mode sees, views among them; what a program does once a step
(denominators, the check of the loss) is in. Casts of weights are left out on both sides. Saved bytes are the storages
that autograd's hooks see, beside parameters and the batch. Under bf16-mixed the module runs within autocast.
`tests/runtime/test_program_counts.py` holds the table's bounds.
"""

DROPOUT = f"""## Dropout

Forward and backward of dropout at p = {P}: CPU time on one thread, medians of alternating runs. The program's keeps its
key alone, and hashes the mask anew in the backward; `F.dropout` keeps a mask in x's dtype.
"""


def calls_table(rows: Sequence[Row]) -> list[str]:
    heads = ("model", "precision", "calls of the module", "of the program", "ratio", "bytes of the module")
    lines = [f"| {' | '.join(heads)} | of the program | ratio |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for r in rows:
        calls = f"{r.module.total} | {r.program.total} | {r.calls_ratio:.2f}"
        kept = f"{r.module.saved_bytes} | {r.program.saved_bytes} | {r.bytes_ratio:.2f}"
        lines.append(f"| {r.model} | {r.precision} | {calls} | {kept} |")
    return lines


def dropout_table(pairs: Sequence[Pair]) -> list[str]:
    lines = ["| elements | dtype | program, ns an element | F.dropout | ratio |", "|--:|---|--:|--:|--:|"]
    lines += [f"| {p.elements} | {p.dtype} | {p.ours:.1f} | {p.torchs:.1f} | {p.ratio:.2f} |" for p in pairs]
    return lines


def document(rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    return "\n".join([HEAD, *calls_table(rows), "", DROPOUT, *dropout_table(pairs)]) + "\n"
