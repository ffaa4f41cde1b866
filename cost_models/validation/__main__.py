"""python -m cost_models.validation: published measurements, or a table of one's own, against what is predicted."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cost_models.errors import ProfileError
from cost_models.validation import own
from cost_models.validation.document import write_document
from cost_models.validation.fitting.both_ways import all_both_ways
from cost_models.validation.fitting.steps import FIGURES, fit
from cost_models.validation.predict import point_of
from cost_models.validation.published import all_results, cases_on, default_folder
from cost_models.validation.report import print_fit, print_own, print_results
from cost_models.validation.result import results_of

USUAL = ("matmul_sustained", "memory_efficiency", "overlap_slowdown", "straggler_per_doubling")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 with one line of what is wrong where a table, a device or a figure can't be used."""
    given = _parser().parse_args(arguments)
    console = Console(width=max(150, Console().width))
    try:
        return _run(given, console)
    except (own.OwnTableError, ProfileError, FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(given: argparse.Namespace, console: Console) -> int:
    if given.table is not None:
        points = [point_of(case) for case in own.read_own(given.table)]
        print_own(results_of(given.table.stem, "step time, s", points, "", given.table.name, halved=False), console)
        return 0
    folder = given.published or default_folder()
    if given.fit is not None:
        print_fit(fit(cases_on(folder, given.fit), given.figures.split(",")), console)
        return 0
    results = all_results(folder)
    print_results(results, folder.name, console)
    if given.write is not None:
        # matplotlib comes with the development tools alone: whoever only reads the errors needs none
        importlib.import_module("cost_models.validation.plot").write_plot(results, given.write.with_suffix(".svg"))
        write_document(results, all_both_ways(folder), folder, given.write)
        console.print(f"Wrote {given.write} and {given.write.with_suffix('.svg').name}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cost_models.validation", description=__doc__, epilog=own.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("table", nargs="?", type=Path, help="a CSV of one's own, columns below")
    parser.add_argument("--published", type=Path, help="the folder of published tables")
    parser.add_argument("--write", type=Path, metavar="MD", help="write the document, and its plot beside it")
    parser.add_argument("--fit", metavar="DEVICE", help="fit figures of a device on the even rows of its tables")
    fitted = ",".join(figure.name for figure in FIGURES)
    parser.add_argument("--figures", default=",".join(USUAL), help=f"what --fit finds, of {fitted}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
