"""``python -m tests.bench.prices``: prints the formulas and figures of docs/appendix/prices.md, and writes it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.bench.prices.document import parts, rewritten


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prices", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document whose marked parts are rewritten")
    path = parser.parse_args(arguments).write
    printed = parts()
    for name, text in printed.items():
        print(f"{name}\n\n{text}\n")
    if path is not None:
        path.write_text(rewritten(path.read_text(encoding="utf-8"), printed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
