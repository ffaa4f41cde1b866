"""Damages folders, reads them, and prints a table of what was seen."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.corruptions.target import OUTCOMES, RIGHT, Target, cases
from tests.corruptions.targets import TARGETS


def main() -> int:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(names)}; all without")
    parser.add_argument("--times", type=int, default=700, help="damaged folders of each target")
    parser.add_argument("--seed", type=int, default=None, help="of the damage; else a new one, printed")
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in names]
    if unknown:
        parser.error(f"{unknown[0]}: give any of {', '.join(names)}")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    table = Table("folder", *OUTCOMES, "s")
    wrong = 0
    for target in TARGETS:
        if not options.targets or target.name in options.targets:
            began_s = time.perf_counter()
            counts = count(target, options.times, seed)
            wrong += sum(counts[outcome] for outcome in OUTCOMES if outcome not in RIGHT)
            numbers = [str(counts[outcome]) for outcome in OUTCOMES]
            table.add_row(target.name, *numbers, f"{time.perf_counter() - began_s:.0f}")
    Console(width=120).print(table)
    return int(wrong > 0)


def count(target: Target, times: int, seed: int) -> Counter[str]:
    """How often each outcome was seen; a line for each that is wrong."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="autoplan-corruptions-") as place:
        for case in cases(target, times, seed, Path(place)):
            counts[case.outcome] += 1
            if case.outcome not in RIGHT:
                print(f"{target.name}: {case.outcome}: {case.done}: {case.said}", flush=True)
    return counts


if __name__ == "__main__":
    sys.exit(main())
