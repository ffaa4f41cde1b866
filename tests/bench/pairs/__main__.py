"""Prints the pairs as they are measured: ``python -m tests.bench.pairs [--rounds 10] [WORD …]``.

Words choose pairs: those whose names, models and precisions hold all of them.
"""

from __future__ import annotations

import argparse
import sys

from tests.bench.pairs.contest import measured_pairs
from tests.bench.pairs.models import LARGE
from tests.bench.pairs.table import section


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pairs")
    parser.add_argument("words", nargs="*", help="of the pairs' names, models and precisions")
    parser.add_argument("--rounds", type=int, default=10, help="of alternating steps")
    given = parser.parse_args()
    print(section(measured_pairs(LARGE, given.rounds, given.words), LARGE, given.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
