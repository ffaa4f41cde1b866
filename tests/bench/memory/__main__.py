"""Prints measured beside predicted peaks, and writes them into a document.

    python -m tests.bench.memory [--write docs/appendix/memory.md] [PLAN ...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.memory.cases import CASES
from tests.bench.memory.measured import measure
from tests.bench.memory.table import document, lines

BOUND = 0.10  # of each rank of each plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory")
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("plans", nargs="*", metavar="PLAN", help=", ".join(CASES))
    given = parser.parse_args()
    rows = []
    for name in given.plans or CASES:
        rows.append(measure(name, CASES[name]))
        print("\n".join(lines(rows[-1])), flush=True)
    if given.write:
        given.write.write_text(document(rows))
    return int(any(abs(row.worst) > BOUND for row in rows))


if __name__ == "__main__":
    sys.exit(main())
