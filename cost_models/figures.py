"""Reading a profile: a TOML file in which each figure is ``{ value, unit, source, date }``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.errors import ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNITS: Mapping[str, tuple[str, float]] = {
    "B": ("bytes", 1.0), "MB": ("bytes", 1e6), "GB": ("bytes", 1e9),
    "MiB": ("bytes", 2.0**20), "GiB": ("bytes", 2.0**30),
    "s": ("seconds", 1.0), "ms": ("seconds", 1e-3), "us": ("seconds", 1e-6),
    "B/s": ("bytes/s", 1.0), "GB/s": ("bytes/s", 1e9), "TB/s": ("bytes/s", 1e12),
    "FLOP/s": ("flops/s", 1.0), "GFLOP/s": ("flops/s", 1e9), "TFLOP/s": ("flops/s", 1e12),
    "1": ("count", 1.0),
    "rows, columns, share": ("tiles", 1.0),
}
"""What a unit measures, and how many of the base unit it is."""

KEYS = ("value", "unit", "source", "date")


@dataclass(frozen=True)
class Figures:
    """One profile's figures. ``path`` is named by every error.

    ``number("matmul", "efficiency", measures="count")`` reads ``[matmul] efficiency = { value = …, … }``.
    """

    path: Path
    tables: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> Figures:
        """The profile at ``path``; a ``ProfileError`` where it is missing or isn't TOML."""
        try:
            return Figures(path, tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ProfileError(path, f"can't be read ({error.strerror})", "Give the path of a profile") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ProfileError(path, f"is not TOML: {error}", "Mend the file at that line") from error

    def number(self, *keys: str, measures: str) -> float:
        """The figure at ``keys`` in base units (bytes, seconds, bytes/s, flops/s, count)."""
        value, scale = self._figure(keys, measures)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise self._error(keys, f"has the value {value!r}", "Give a number that is not negative")
        return value * scale

    def positive(self, *keys: str, measures: str) -> float:
        """As ``number``, where zero would divide."""
        number = self.number(*keys, measures=measures)
        if number == 0:
            raise self._error(keys, "is 0", "Give a positive number")
        return number

    def whole(self, *keys: str) -> int:
        """As ``positive``, of what is counted: a whole number from 1."""
        number = self.positive(*keys, measures="count")
        if number != int(number):
            raise self._error(keys, f"has the value {number!r}", "Give a whole number from 1")
        return int(number)

    def text(self, *keys: str) -> str:
        """What stands at ``keys`` and is no figure: the name of a fabric."""
        value = self._at(keys)
        if not isinstance(value, str) or not value:
            raise self._error(keys, f"has the value {value!r}", "Give a name")
        return value

    def triples(self, *keys: str) -> tuple[tuple[int, int, float], ...]:
        """The figure at ``keys`` as triples (rows, columns, share)."""
        value, _ = self._figure(keys, "tiles")
        good = isinstance(value, list) and value and all(
            isinstance(row, list) and len(row) == 3 and all(type(x) is int and x > 0 for x in row[:2])
            and type(row[2]) in (int, float) and 0 < row[2] < float("inf") for row in value
        )
        if not good:
            remedy = "Give a list of [rows, columns, share], all positive, rows and columns whole"
            raise self._error(keys, f"has the value {value!r}", remedy)
        return tuple((int(rows), int(columns), float(share)) for rows, columns, share in value)

    def has(self, *keys: str) -> bool:
        """Whether the profile has a table that only some devices need."""
        node: Any = self.tables
        for key in keys:
            if not isinstance(node, dict) or key not in node:
                return False
            node = node[key]
        return True

    def names(self, *keys: str) -> tuple[str, ...]:
        """The figures that a table holds."""
        table = self._at(keys)
        if not isinstance(table, dict) or not table:
            raise self._error(keys, "is not a table of figures", f"Add a table [{'.'.join(keys)}]")
        return tuple(table)

    def _at(self, keys: tuple[str, ...]) -> Any:
        node: Any = self.tables
        for key in keys:
            if not isinstance(node, dict) or key not in node:
                form = ", ".join(f"{name} = …" for name in KEYS)
                remedy = f"Add it under [{'.'.join(keys[:-1])}] as {keys[-1]} = {{ {form} }}"
                raise self._error(keys, "is missing", remedy)
            node = node[key]
        return node

    def _figure(self, keys: tuple[str, ...], measures: str) -> tuple[Any, float]:
        figure = self._at(keys)
        lacking = [key for key in KEYS if not isinstance(figure, dict) or figure.get(key) in (None, "")]
        if lacking:
            raise self._error(keys, f"lacks its {', '.join(lacking)}", f"Give each of {', '.join(KEYS)}")
        unit = figure["unit"]
        fitting = [name for name, (kind, _) in UNITS.items() if kind == measures]
        if unit not in fitting:
            cause = f"is in {unit!r}, which is no unit of {measures}"
            raise self._error(keys, cause, f"Use one of {', '.join(fitting)}")
        return figure["value"], UNITS[unit][1]

    def _error(self, keys: tuple[str, ...], cause: str, remedy: str) -> ProfileError:
        return ProfileError(self.path, f"{'.'.join(keys)} {cause}", remedy)
