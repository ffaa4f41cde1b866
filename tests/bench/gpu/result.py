"""What a part found: a table, and whether it is as asked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """Of one part.

    title  of its section; ``told`` says in a sentence or two what was measured
    heads  of the table's columns
    wrong  what isn't as asked, a line each
    """

    title: str
    told: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wrong: tuple[str, ...] = ()

    def section(self) -> str:
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, ("---",) * len(self.heads), *self.rows)]
        missed = ["", "Not as asked:", "", *(f"- {line}" for line in self.wrong)] if self.wrong else []
        return "\n".join([f"## {self.title}", "", self.told, "", *lines, *missed, ""])

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(file: Path) -> Result:
        data = json.loads(file.read_text())
        rows = tuple(tuple(row) for row in data["rows"])
        return Result(data["title"], data["told"], tuple(data["heads"]), rows, tuple(data["wrong"]))
