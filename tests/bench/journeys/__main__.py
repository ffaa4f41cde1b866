"""The journeys of a new user: python -m tests.bench.journeys [--only NAME …]

Each begins in an empty folder. Ends with status 1 where a step fails, shows a traceback, or leaves out what it has to
say.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.journeys.journey import outcomes
from tests.bench.journeys.journeys import JOURNEYS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(JOURNEYS), default=list(JOURNEYS), metavar="NAME")
    parser.add_argument("--verbose", action="store_true", help="print what each step prints")
    given = parser.parse_args(arguments)
    wrong = 0
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            for found in outcomes(JOURNEYS[name], Path(folder)):
                wrong += bool(found.wrong)
                print(f"{name}: {found.step.what}: {found.wrong or 'as hoped'}, {found.seconds:.0f} s", flush=True)
                if found.wrong or given.verbose:
                    print(found.output)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
