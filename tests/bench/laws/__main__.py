"""Laws of the search, cell by cell; ends with those that are broken, and with status 1 where there are any.

    python -m tests.bench.laws --pins 200 [--seconds 600] [--only mixtral]
    python -m tests.bench.laws --laws

What was found is kept in a file, so that a run that was cut off goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from tests.bench.laws.cells import CLUSTERS, SUBJECTS, tried
from tests.bench.laws.laws import Finding, chosen, laws, pinned, same_in_two_processes

PINNED_CLUSTERS = CLUSTERS[:3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pins", type=int, default=0, help="so many pins over all cells")
    parser.add_argument("--laws", action="store_true", help="the laws of resources, systems and processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no cell is begun after so many")
    parser.add_argument("--only", action="append", default=[], help="a part of a cell's name; may be given again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("build/laws.json"), help="what was found")
    parser.add_argument("--chosen", nargs=2, metavar=("MODEL", "CLUSTER"), help="print what auto chooses as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.chosen:
        print(json.dumps(chosen(*given.chosen)))
        return 0
    return run(given)


def run(given: argparse.Namespace) -> int:
    """All cells that are asked for and weren't run before."""
    kept = json.loads(given.kept.read_text()) if given.kept.exists() else {}
    start = time.monotonic()
    for key, findings in asked(given):
        if key in kept or not all(part in key for part in given.only):
            continue
        if time.monotonic() - start > given.seconds:
            print(f"{given.seconds:.0f} s are over: {key} and what follows wasn't run")
            break
        kept[key] = []
        for finding in findings():
            print(finding, flush=True)
            kept[key].append(asdict(finding))
        given.kept.parent.mkdir(parents=True, exist_ok=True)
        given.kept.write_text(json.dumps(kept, indent=1))
    return summary([Finding(**each) for findings in kept.values() for each in findings])


def asked(given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
    """(key, what is compared) of each cell."""
    if given.pins:
        cells = tried(tuple(SUBJECTS), PINNED_CLUSTERS)
        count = -(-given.pins // len(cells))
        for cell in cells:
            yield f"pins {cell} {count} {given.seed}", partial(pinned, *cell, count, given.seed)
    for cell in tried(tuple(SUBJECTS), CLUSTERS) if given.laws else ():
        yield f"laws {cell}", partial(laws, *cell)
        yield f"processes {cell}", partial(processes, *cell)


def processes(model: str, cluster: str) -> Iterator[Finding]:
    """As a finding, broken where two processes differ."""
    same = same_in_two_processes(model, cluster)
    yield Finding(model, cluster, "the same in two processes", 1.0, 1.0 if same else 0.5)


def summary(findings: list[Finding]) -> int:
    broken = [finding for finding in findings if not finding.holds]
    print(f"{len(findings)} compared, {len(broken)} broken")
    for finding in broken:
        print(finding)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
