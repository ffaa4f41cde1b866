"""One published measurement as what the cost models are asked, and how a table's rows become such cases."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from cost_models.errors import ProfileError
from cost_models.hardware import Topology, load_device
from cost_models.transformer.model import Recipe, Transformer

STEP, LAYER_FORWARD, LAYER_BACKWARD, LAYER = "step", "layer forward", "layer backward", "layer"
EXPERTS_FORWARD, EXPERTS_BACKWARD = "experts forward", "experts backward"
"""What a case measures: a step; one layer's passes (both: "layer"); the passes of a mixture's feed-forward alone."""


@dataclass(frozen=True)
class Case:
    """One measured time.

    table, row    the table's name, and which of its measurements this is, from 1: the line, unless one holds several;
                  times that aren't independent, a forward and a backward and their sum, share one
    label, group  what the row is called, and the model size within which ranks are compared
    what          which time: "step", "layer forward", ...
    measured_s    seconds
    """

    table: str
    row: int
    label: str
    group: str
    what: str
    model: Transformer
    recipe: Recipe
    topology: Topology
    measured_s: float

    @property
    def device(self) -> str:
        return self.topology.device.name


@dataclass(frozen=True)
class LeftOut:
    """A row that isn't priced, and why."""

    table: str
    row: int
    label: str
    reason: str


class Unusable(ValueError):
    """A row that doesn't say enough to be priced; the text is the reason."""


@dataclass(frozen=True)
class Row:
    """One line of a table: ``text`` by column, ``number`` its place from 1."""

    number: int
    text: dict[str, str]

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

    def true(self, column: str) -> bool:
        return self.get(column).lower() in ("true", "1", "yes")


@dataclass(frozen=True)
class Table:
    """A published file: ``cases`` makes a row's cases, or raises ``Unusable``; its docstring states what is assumed."""

    name: str
    file: str
    cases: Callable[[Row], tuple[Case, ...]]
    label: Callable[[Row], str]


@dataclass(frozen=True)
class Read:
    """A table's cases, and the rows that gave none."""

    table: Table
    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]


def rows_of(path: Path) -> tuple[Row, ...]:
    """The lines of a CSV with a header."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(Row(number, line) for number, line in enumerate(csv.DictReader(file), start=1))


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


def machine(device: str, devices: int, per_node: int = 8, cards: int | None = None) -> Topology:
    """``devices`` of a known kind in nodes of ``per_node`` that share ``cards`` network cards (None: as its profile).

    A ``ProfileError`` where the device isn't known; ``Unusable`` where the last node wouldn't be whole.
    """
    known, interconnect = load_device(device)
    within = min(devices, per_node)
    if devices % within:
        raise Unusable(f"{devices} devices don't fill nodes of {within}")
    if cards is not None:
        interconnect = replace(interconnect, nics_per_node=cards)
    return Topology(known, interconnect.levels(devices // within, within))


def made(
    group: str, model: Transformer, recipe: Recipe, topology: Topology, measured_s: float, what: str = STEP
) -> Case:
    """A case of one row; ``read_table`` says of which. ``Unusable`` where the recipe's ranks aren't the devices."""
    if recipe.devices != topology.devices:
        raise Unusable(f"{recipe.devices} ranks on {topology.devices} devices")
    return Case("", 0, "", group, what, model, recipe, topology, measured_s)


def share(whole: int, *parts: int) -> int:
    """``whole`` divided by each of ``parts``; ``Unusable`` where that isn't whole."""
    for part in parts:
        if whole % part:
            raise Unusable(f"{whole} doesn't divide by {part}")
        whole //= part
    return whole
