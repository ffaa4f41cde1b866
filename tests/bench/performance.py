"""docs/performance.md's table: the pairs of docs/appendix/program.md, a line for each way by hand.

    python -m tests.bench.performance [--write docs/performance.md]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PAIRS = Path(__file__).parents[2] / "docs" / "appendix" / "program.md"
SECTION = re.compile(r"(<!-- pairs -->\n).*?(<!-- end of pairs -->)", re.DOTALL)
MEASURED = re.compile(r"^Measured on (\S+) ", re.MULTILINE)
RATIOS = {"CPU seconds": 3, "operator calls": 5, "saved bytes": 6}
"""Columns of a pair's line."""
HEADINGS = ("by hand", "models", *RATIOS)


def pairs_of(text: str) -> Mapping[str, list[Sequence[str]]]:
    """The cells of each pair's line, by what is written by hand."""
    found: dict[str, list[Sequence[str]]] = {}
    lines = text[text.index("| by hand |") :].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.setdefault(cells[0], []).append(cells)
    return found


def spread(values: Iterable[str]) -> str:
    """The smallest and the largest ratio; none where nothing was counted."""
    numbers = sorted(float(value) for value in values if value != "–")
    return f"{numbers[0]:.2f} to {numbers[-1]:.2f}" if numbers else "–"


def performance_table(text: str) -> str:
    lines = [f"Measured on {MEASURED.findall(text)[-1]}.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|"]
    for way, pairs in pairs_of(text).items():
        models = sorted({pair[1].split(",")[0] for pair in pairs})
        ratios = [spread(pair[column] for pair in pairs) for column in RATIOS.values()]
        lines.append(f"| {' | '.join((way, ', '.join(models), *ratios))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document whose marked part is rewritten")
    given = parser.parse_args()
    table = performance_table(PAIRS.read_text(encoding="utf-8"))
    print(table)
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        given.write.write_text(SECTION.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
