"""The command: prints the matrix, and ends with status 1 where a bound doesn't hold."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from autoplan.ir.codec import decode, encode
from autoplan.search.space.systems import SYSTEMS
from autoplan.verify.local_ranks import RankPool
from tests.bench.systems import cases
from tests.bench.systems.cells import Outcome, check
from tests.bench.systems.document import document, failures, figures, matrix, renewed, tally, verdict
from tests.bench.systems.reference import references

TIMEOUT_S = 900


@contextmanager
def pools() -> Iterator[dict[int, RankPool]]:
    """A pool of ranks of each size that a system needs; eight ranks on a few cores take minutes for what one does."""
    with RankPool(4, timeout_s=TIMEOUT_S) as four, RankPool(8, timeout_s=TIMEOUT_S) as eight:
        yield {4: four, 8: eight}


def run(cells: Sequence[cases.Cell]) -> Iterator[Outcome]:
    with pools() as ranks, references(cases.made, cases.MIXED) as known:
        for system, model in cells:
            outcome = check(ranks, known, system, model)
            said = "; ".join(outcome.faults) or verdict(outcome)
            print(f"{outcome.seconds:5.1f} s  {system} × {model} ({outcome.plan or 'no plan'}): {said}",
                  file=sys.stderr, flush=True)  # fmt: skip
            yield outcome


def keep(folder: Path, outcome: Outcome) -> None:
    """One file a cell, so that a matrix can be made of several runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{outcome.system} {outcome.model}.json").write_text(json.dumps(encode(outcome), indent=1))


def kept(folder: Path) -> list[Outcome]:
    """What runs kept there, in the order of the matrix."""
    files = [folder / f"{system} {model}.json" for system, model in cases.cells()]
    return [decode(Outcome, json.loads(file.read_text()), file.name) for file in files if file.exists()]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.systems", description=__doc__)
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="only this one (repeatable)")
    parser.add_argument("--model", action="append", choices=[*cases.MODELS, cases.MIXTURE], help="likewise")
    parser.add_argument("--keep", type=Path, help="a folder of results: those that it has aren't run again")
    parser.add_argument("--write", type=Path, help="also write the matrix into this document")
    parser.add_argument("--renew", type=Path, help="write the rows of what ran into this document, whose others stay")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    wanted = [
        (s, m) for s, m in cases.cells() if s in (given.system or SYSTEMS) and m in (given.model or (m,))
    ]
    known = kept(given.keep) if given.keep else []
    done = {(outcome.system, outcome.model) for outcome in known}
    outcomes = []
    for outcome in run([cell for cell in wanted if cell not in done]):
        outcomes.append(outcome)
        if given.keep:
            keep(given.keep, outcome)
    outcomes = kept(given.keep) if given.keep else outcomes
    print(f"{matrix(outcomes)}\n\n{figures(outcomes)}\n\n{tally(outcomes)}")
    if given.write:
        given.write.write_text(document(outcomes))
    if given.renew:
        given.renew.write_text(renewed(given.renew.read_text(), outcomes, cases.cells()))
    if wrong := failures(outcomes):
        print(f"\n{wrong}", file=sys.stderr)
    return 1 if any(o.faults for o in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
