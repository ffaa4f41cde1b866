"""Prints the emitted program beside what a module's author would run by hand, and writes it into a document.

    python -m tests.bench.program [--rounds 10] [--write docs/appendix/program.md]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.pairs.contest import measured_pairs
from tests.bench.pairs.models import LARGE
from tests.bench.pairs.table import section
from tests.bench.program.counts import PRECISIONS, row
from tests.bench.program.document import calls_table, document
from tests.bench.program.dropout import timed
from tests.bench.program.models import MODELS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.program")
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("--rounds", type=int, default=10, help="of the pairs' alternating steps")
    given = parser.parse_args()
    rows = [row(model, precision) for model in MODELS for precision in PRECISIONS]
    print("\n".join(calls_table(rows)))
    text = f"{document(rows, timed())}\n{section(measured_pairs(LARGE, given.rounds), LARGE, given.rounds)}"
    print(text)
    if given.write:
        given.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
