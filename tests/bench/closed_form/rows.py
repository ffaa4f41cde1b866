"""A published table's rows, and how they become cases."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cost_models.errors import ProfileError
from cost_models.hardware import Topology
from tests.bench.closed_form.case import STEP, Case, Machines, Unusable
from tests.bench.closed_form.transformer.model import Recipe, Transformer


@dataclass(frozen=True)
class LeftOut:
    """A row that isn't priced, and why."""

    table: str
    row: int
    label: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One line of a table: ``text`` by column, ``number`` its place from 1; ``machines`` are the file's."""

    number: int
    text: dict[str, str]
    machines: Machines = field(default_factory=Machines)

    def __getitem__(self, column: str) -> str:
        """The text of a column; ``Unusable`` where it is missing or empty."""
        value = (self.text.get(column) or "").strip()
        if not value:
            raise Unusable(f"{column} isn't stated")
        return value

    def get(self, column: str, default: str = "") -> str:
        return (self.text.get(column) or "").strip() or default

    def whole(self, column: str) -> int:
        """A whole number; ``Unusable`` where it is missing or isn't one."""
        text = self[column]
        try:
            return int(text)
        except ValueError as error:
            raise Unusable(f"{column}: {text!r} isn't a whole number") from error

    def positive(self, column: str) -> float:
        """A positive number; ``Unusable`` where it is missing or isn't one."""
        text = self[column]
        try:
            value = float(text)
        except ValueError as error:
            raise Unusable(f"{column}: {text!r} isn't a number") from error
        if not 0 < value < math.inf:
            raise Unusable(f"{column} is {text}, not positive")
        return value

    def machine(
        self, device: str, devices: int, per_node: int = 8, cards: int | None = None, network: str = ""
    ) -> Topology:
        """As ``Machines.of``."""
        return self.machines.of(device, devices, per_node, cards, network)

    def true(self, column: str) -> bool:
        return self.get(column).lower() in ("true", "1", "yes")


@dataclass(frozen=True)
class Table:
    """A published file.

    cases   makes a row's cases, or raises ``Unusable``; its docstring states what is assumed
    fitted  whether figures may be fitted on its even rows; False where it was measured under what no profile knows, so
            that all its rows are only reported, or where the rest of its publication was fitted on
    shipped whether the repository alone holds it
    """

    name: str
    file: str
    cases: Callable[[Row], tuple[Case, ...]]
    label: Callable[[Row], str]
    fitted: bool = True
    shipped: bool = False


@dataclass(frozen=True)
class Read:
    """A table's cases, and the rows that gave none."""

    table: Table
    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]


def rows_of(path: Path) -> tuple[Row, ...]:
    """The lines of a CSV with a header."""
    machines = Machines()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(Row(number, line, machines) for number, line in enumerate(csv.DictReader(file), start=1))


def read_table(table: Table, rows: Iterable[Row]) -> Read:
    """Every row's cases; a row that doesn't say enough, or whose device isn't known, is left out with the reason."""
    cases: list[Case] = []
    left_out: list[LeftOut] = []
    for row in rows:
        try:
            made = table.cases(row)
        except (Unusable, ProfileError) as error:
            left_out.append(LeftOut(table.name, row.number, table.label(row), str(error)))
        else:
            cases.extend(_named(case, table, row) for case in made)
    return Read(table, tuple(cases), tuple(left_out))


def _named(case: Case, table: Table, row: Row) -> Case:
    """With its table, and the row and label of its own that a reader may have given it, or the line's."""
    return replace(case, table=table.name, row=case.row or row.number, label=case.label or table.label(row))


def made(
    group: str, model: Transformer, recipe: Recipe, topology: Topology, measured_s: float, what: str = STEP
) -> Case:
    """A case of one row; ``read_table`` says of which. ``Unusable`` where the recipe's ranks aren't the devices."""
    if recipe.devices != topology.devices:
        raise Unusable(f"{recipe.devices} ranks on {topology.devices} devices")
    return Case("", 0, "", group, what, model, recipe, topology, measured_s)
