"""Tables in plain text: columns as wide as what they hold, the last one wrapped."""

import textwrap
from collections.abc import Sequence

WIDTH = 118
LEAST_LAST = 24  # columns that the last one keeps, however wide the others are
GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), indent: int = 2) -> str:
    """Rows under a header.

    right   indices of the columns that are numbers, set to the right
    indent  columns before the first
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    before = indent + sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    last = max(WIDTH - before, LEAST_LAST)
    lines = []
    for row in (header, *rows):
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        first, *more = textwrap.wrap(row[-1], last, break_on_hyphens=False) or [""]
        lines.append(" " * indent + GAP.join([*cells[:-1], first]))
        lines += [" " * before + line for line in more]
    return "\n".join(line.rstrip() for line in lines)


def paragraph(text: str, bullet: str = "- ", indent: int = 2) -> str:
    """A wrapped item of a list."""
    start = " " * indent + bullet
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False)
