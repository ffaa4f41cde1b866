"""python -m cost_models.validation my.csv: a table of steps of one's own against what is predicted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cost_models.errors import ProfileError
from cost_models.transformer.step import step_seconds
from cost_models.validation import own
from cost_models.validation.case import Case
from cost_models.validation.metrics import Point
from cost_models.validation.report import print_own


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 with one line of what is wrong where the table or a device can't be used."""
    parser = argparse.ArgumentParser(
        prog="python -m cost_models.validation", description=__doc__, epilog=own.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("table", type=Path, help="a CSV of one's own, columns below")
    table = parser.parse_args(arguments).table
    try:
        print_own([point_of(case) for case in own.read_own(table)], Console(width=max(150, Console().width)))
        return 0
    except (own.OwnTableError, ProfileError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def point_of(case: Case) -> Point:
    """A step with its prediction, in seconds."""
    predicted_s = float(step_seconds(case.model, case.recipe, case.topology).seconds)
    return Point(case.row, case.label, case.group, case.device, predicted_s, case.measured_s)


if __name__ == "__main__":
    sys.exit(main())
