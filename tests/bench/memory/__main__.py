"""Prints measured beside predicted peaks, and writes them into a document.

    python -m tests.bench.memory [--write docs/appendix/memory.md] [PLAN ...]

What is written keeps the rows of plans that weren't run again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.memory.cases import CASES
from tests.bench.memory.measured import measure
from tests.bench.memory.table import document, lines, row_of, rows_of

BOUND = 0.06  # of each rank of each plan, but of mixtures whose routers aren't trained


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory")
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("plans", nargs="*", metavar="PLAN", help=", ".join(CASES))
    given = parser.parse_args()
    known = rows_of(given.write.read_text()) if given.write and given.write.exists() else {}
    too_far = False
    for name in given.plans or CASES:
        row = measure(name, CASES[name])
        print("\n".join(lines(row)), flush=True)
        too_far |= abs(row.worst) > BOUND and not CASES[name].untrained
        known[name] = row_of(row)
        if given.write:  # what was run stays, whatever comes after it
            given.write.write_text(document(known))
    return int(too_far)


if __name__ == "__main__":
    sys.exit(main())
