"""python -m tests.bench.closed_form: published measurements against what the closed form predicts."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cost_models.errors import ProfileError
from tests.bench.closed_form.document import write_document
from tests.bench.closed_form.fitting.both_ways import all_both_ways
from tests.bench.closed_form.fitting.steps import FIGURES, fit
from tests.bench.closed_form.own_table import columns
from tests.bench.closed_form.own_table.printed import print_table
from tests.bench.closed_form.published import all_results, cases_on, default_folder
from tests.bench.closed_form.report import print_fit, print_results

USUAL = ("matmul_sustained", "memory_efficiency", "overlap_slowdown", "straggler_per_doubling")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 with one line of what is wrong where a device or a figure can't be used."""
    given = _parser().parse_args(arguments)
    console = Console(width=max(150, Console().width))
    try:
        return _run(given, console)
    except (ProfileError, FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(given: argparse.Namespace, console: Console) -> int:
    if given.table is not None:
        print_table(given.table, console)
        return 0
    folder = given.published or default_folder()
    if given.fit is not None:
        print_fit(fit(cases_on(folder, given.fit), given.figures.split(",")), console)
        return 0
    results = all_results(folder)
    print_results(results, folder.name, console)
    if given.write is not None:
        # matplotlib comes with the development tools alone: whoever only reads the errors needs none
        importlib.import_module("tests.bench.closed_form.plot").write_plot(results, given.write.with_suffix(".svg"))
        write_document(results, all_both_ways(folder), folder, given.write)
        console.print(f"Wrote {given.write} and {given.write.with_suffix('.svg').name}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.closed_form", description=__doc__, epilog=columns.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--table", type=Path, metavar="CSV", help="price a table of one's own, columns below")
    parser.add_argument("--published", type=Path, help="the folder of published tables")
    parser.add_argument("--write", type=Path, metavar="MD", help="write the document, and its plot beside it")
    parser.add_argument("--fit", metavar="DEVICE", help="fit figures of a device on the even rows of its tables")
    fitted = ",".join(figure.name for figure in FIGURES)
    parser.add_argument("--figures", default=",".join(USUAL), help=f"what --fit finds, of {fitted}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
