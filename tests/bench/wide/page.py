"""Lines of the wide table: of rows that a run found, and of those that the page has from earlier runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.wide.cells import PARALLELISMS, Cell, Row

BEFORE = "df7ce60c or before"
"""At which commit rows were found that the page had without saying so."""
EQUAL, ONE_PART, DIFFERS, ERROR, CRASH = "equal", "one part", "differs", "error", "**crash**"
MARKS = ("", EQUAL, ONE_PART, DIFFERS, ERROR, CRASH)


@dataclass(frozen=True)
class Line:
    """What the page says of a model.

    exported  whether torch.export traces it alone
    marks     one of MARKS by the parallelism
    split     percent of FLOPs that tp=4 splits; None where that isn't known
    at        the commit whose sources found it
    reasons   why cells aren't equal
    """

    name: str
    family: str
    exported: bool
    marks: Mapping[str, str]
    split: int | None
    at: str
    reasons: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether a cell is neither equal nor a clear error."""
        return any(mark in (DIFFERS, CRASH) for mark in self.marks.values())

    @property
    def equal(self) -> bool:
        """In every cell, but for a pipeline that a model of one part can't have."""
        return all(mark in (EQUAL, ONE_PART) for mark in self.marks.values())

    @property
    def one_part(self) -> bool:
        return ONE_PART in self.marks.values()

    def __str__(self) -> str:
        split = "" if self.split is None else f"{self.split}%"
        marks = (self.marks.get(name, "") for name in PARALLELISMS)
        return f"| {' | '.join((self.name, self.family, 'yes' if self.exported else 'no', *marks, split, self.at))} |"


def line_of(row: Row, family: str) -> Line:
    share = row.cells.get("tp=4", Cell()).split
    split = None if share is None else round(100 * share)
    marks = {name: mark(cell) for name, cell in row.cells.items()}
    return Line(row.name, family, not row.exported, marks, split, row.commit, tuple(reasons(row)))


def mark(cell: Cell) -> str:
    if cell.equal:
        return EQUAL
    if cell.clear and "the model is a chain of 1 parts" in cell.error:
        return ONE_PART
    if not cell.clear:
        return CRASH
    return DIFFERS if cell.plan else ERROR


def reasons(row: Row) -> list[str]:
    """The errors' first lines, one for all cells that say the same."""
    said: dict[str, list[str]] = {}
    for name, cell in row.cells.items():
        if not cell.equal:
            said.setdefault(cell.error, []).append(name)
    return [f"{', '.join(names) if len(names) < len(row.cells) else 'all'}: {text}" for text, names in said.items()]


def lines_in(page: str) -> dict[str, Line]:
    """By name, those that a page has."""
    found = {}
    for text in page.splitlines():
        line = parsed([cell.strip() for cell in text.strip("|").split("|")]) if text.startswith("| ") else None
        if line is not None:
            own = re.findall(rf"^{re.escape(line.name)}: (.+)$", page, re.MULTILINE)
            found[line.name] = Line(**{**vars(line), "reasons": tuple(own)})
    return found


def parsed(cells: Sequence[str]) -> Line | None:
    """None of what is no row of the table."""
    width = 4 + len(PARALLELISMS)
    if len(cells) not in (width, width + 1) or cells[2] not in ("yes", "no"):
        return None
    name, family, exported, *marks = cells[: 3 + len(PARALLELISMS)]
    split, at = cells[width - 1].rstrip("%"), cells[width] if len(cells) > width else BEFORE
    told = {kind: mark for kind, mark in zip(PARALLELISMS, marks, strict=True) if mark}
    assert set(told.values()) <= set(MARKS), cells
    return Line(name, family, exported == "yes", told, int(split) if split else None, at)
