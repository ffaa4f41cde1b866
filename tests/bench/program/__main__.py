"""Prints the emitted program beside what a module's author would run by hand, and writes it into a document.

    python -m tests.bench.program [--write docs/appendix/program.md]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.program.counts import PRECISIONS, row
from tests.bench.program.document import calls_table, document
from tests.bench.program.dropout import timed
from tests.bench.program.models import MODELS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.program")
    parser.add_argument("--write", type=Path, help="the document to write")
    given = parser.parse_args()
    rows = [row(model, precision) for model in MODELS for precision in PRECISIONS]
    print("\n".join(calls_table(rows)))
    text = document(rows, timed())
    print(text)
    if given.write:
        given.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
