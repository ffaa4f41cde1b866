"""The command: prints the table, and ends with status 1 where a cell isn't equal to one device."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from autoplan.ir.codec import decode, encode
from autoplan.verify.local_ranks import RankPool
from tests.bench.architectures.catalog import ARCHITECTURES
from tests.bench.architectures.cells import PARALLELISMS, RANKS, Outcome, check
from tests.bench.architectures.document import document, failures, table, tally, verdict


def run(names: Sequence[str], parallelisms: Sequence[str], *, float32: bool) -> Iterator[list[Outcome]]:
    """Each architecture's cells, told of as they come."""
    chosen = {name: PARALLELISMS[name] for name in parallelisms}
    with RankPool(RANKS, timeout_s=240) as pool:
        for name in names:
            outcomes = check(pool, ARCHITECTURES[name], chosen, float32=float32)
            for o in outcomes:
                said = "; ".join(o.faults) or verdict(o)
                print(f"{o.seconds:5.1f} s  {name} {o.parallelism} ({o.plan or 'no plan'}): {said}",
                      file=sys.stderr, flush=True)  # fmt: skip
            yield outcomes


def keep(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """One file an architecture, so that a table can be made of several runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{outcomes[0].architecture}.json").write_text(json.dumps([encode(o) for o in outcomes], indent=1))


def kept(folder: Path) -> list[Outcome]:
    """What earlier runs kept, in the order of the table."""
    files = [folder / f"{name}.json" for name in ARCHITECTURES]
    found = [(file.name, data) for file in files if file.exists() for data in json.loads(file.read_text())]
    return [decode(Outcome, data, name) for name, data in found]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.architectures", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ARCHITECTURES), metavar="NAME", help="these architectures")
    parser.add_argument("--under", nargs="+", choices=list(PARALLELISMS), help="these parallelisms")
    parser.add_argument("--float64-only", action="store_true", help="not under torchrun")
    parser.add_argument("--keep", type=Path, help="a folder of results: kept there, the table is of all that are there")
    parser.add_argument("--write", type=Path, help="also write the table into this document")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    outcomes: list[Outcome] = []
    names, under = given.only or list(ARCHITECTURES), given.under or list(PARALLELISMS)
    for found in run(names, under, float32=not given.float64_only):
        outcomes += found
        if given.keep:
            keep(given.keep, found)
    told = kept(given.keep) if given.keep else outcomes
    print(f"{table(told)}\n\n{tally(told)}")
    if given.write:
        given.write.write_text(document(told))
    if wrong := failures(outcomes):
        print(f"\n{wrong}", file=sys.stderr)
    return 1 if any(o.faults for o in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
