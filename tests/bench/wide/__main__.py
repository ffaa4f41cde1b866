"""The wide table: docs/appendix/models_wide.md, written by ``make zoo-wide``.

    python -m tests.bench.wide [--only NAME …] [--family NAME …] [--new] [--seconds N] [--kept FILE] [--write FILE]

Each model is checked in a process of its own. What was found is kept, so that a run that was cut off goes on where the
sources are the same. Rows of models that this run doesn't check stay as the page has them. Ends with status 1 where a
row is neither equal nor a clear error.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.bench.wide.catalog import MODELS
from tests.bench.wide.cells import PARALLELISMS, Cell, Row, check
from tests.bench.wide.document import document, progress, summary
from tests.bench.wide.kept import Kept, sources_digest
from tests.bench.wide.page import line_of, lines_in

TIME_LIMIT_S = 600
PAGE = Path("docs/appendix/models_wide.md")


def in_fork(name: str, under: Sequence[str], limit_s: float = TIME_LIMIT_S) -> Row:
    """The model's row; where its process dies or doesn't end, a row that says so."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=checked, args=(name, under, theirs))
    process.start()
    theirs.close()
    said = f"not done after {limit_s:g} s"
    try:
        if ours.poll(limit_s):
            return ours.recv()
    except EOFError:
        process.join(5)
        said = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Row(name, said, dict.fromkeys(under, Cell(error=said, clear=False)))


def checked(name: str, under: Sequence[str], connection: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    connection.send(check(MODELS[name], {one: PARALLELISMS[one] for one in under}))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), metavar="NAME", help="these models")
    parser.add_argument("--family", nargs="+", choices=sorted({m.family for m in MODELS.values()}), default=())
    parser.add_argument("--under", nargs="+", choices=list(PARALLELISMS), default=list(PARALLELISMS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further model after so many")
    parser.add_argument("--kept", type=Path, default=Path("build/models_wide.json"), help="what was found so far")
    parser.add_argument("--digest", default="", help="go on with what these sources found, whatever changed since")
    parser.add_argument("--new", action="store_true", help="models alone that the document has no row of")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document")
    given = parser.parse_args(arguments)
    kept, digest, start = Kept(given.kept), given.digest or sources_digest(), time.monotonic()
    page = given.write or PAGE
    before = lines_in(page.read_text(encoding="utf-8")) if page.exists() else {}
    names = [n for n in given.only or MODELS if not given.family or MODELS[n].family in given.family]
    for name in names:
        if (name in kept.found(digest) and not given.only) or time.monotonic() - start >= given.seconds:
            continue
        if given.new and name in before:
            continue
        row = in_fork(name, given.under)
        kept.add(digest, row)
        print(progress(row), flush=True)
    found = {name: line_of(row, MODELS[name].family) for name, row in kept.found(digest).items() if name in MODELS}
    every = before | found
    lines = [every[name] for name in MODELS if name in every]
    print(summary(lines))
    if given.write:
        given.write.write_text(document(lines), encoding="utf-8")
    return 1 if any(line.bad for name, line in found.items() if name in names) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
