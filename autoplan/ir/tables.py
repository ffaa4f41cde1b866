"""Tables that lie together in one flat parameter, and who has which part of them.

The flat parameter is split evenly: of n members, m has elements [m·N/n, (m+1)·N/n). A *box* is some rows and columns of
one table that lie in it, row after row, on one member; what lies in no box is padding. Whole tables on one member each
are placed table-wise; boxes of some rows row-wise, of some columns column-wise. So one operator looks up all of them,
whatever their placement, and the flat parameter is stored, updated and checkpointed as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

KINDS = ("table", "rows", "columns")  # how one may be placed
LOOKUPS = "autoplan.lookups"  # what looks them up
SPARSE = "sparse"  # its keyword: gradients are of looked-up rows alone, as of torch's ``nn.Embedding(sparse=True)``
CACHED = "cached"  # its keyword: tables lie off the device, which has a cache of their rows (``Cached``)


@dataclass(frozen=True)
class Table:
    """How one table is looked up.

    rows, width  of the table
    length       indices for each row of the batch
    pooling      "sum", "mean" or "max" of their rows; "none": one after another
    padding      the index that doesn't count in a pool, and gets no gradient; -1 for none
    scaled       whether rows are multiplied by numbers of the batch before they are summed up
    """

    rows: int
    width: int
    length: int = 1
    pooling: str = "none"
    padding: int = -1
    scaled: bool = False

    @property
    def places(self) -> int:
        """Vectors in the result for each row of the batch."""
        return self.length if self.pooling == "none" else 1


@dataclass(frozen=True)
class Box:
    """Rows [row, row + rows) and columns [column, column + columns) of a table, from element ``start`` on."""

    table: int
    row: int
    rows: int
    column: int
    columns: int
    start: int

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def stop(self) -> int:
        return self.start + self.elements


@dataclass(frozen=True)
class Cached:
    """Of tables that lie off the device, its cache of their rows.

    where  "host" or "nvme"
    state  what the optimizer keeps of a row: "none", "row" (one number), "element" (one for each of its elements)
    boxes  of each box (rows that there is room for, of those that a microbatch looks up so many as aren't there)
    """

    where: str
    state: str
    boxes: tuple[tuple[int, int], ...]

    @staticmethod
    def of(given: object) -> Cached | None:
        """From an operator's keyword; None where there is none."""
        if not given:
            return None
        assert isinstance(given, tuple)
        where, state, boxes = given
        return Cached(where, state, boxes)

    @property
    def arguments(self) -> tuple:
        """As plain tuples."""
        return astuple(self)

    def elements(self, box: Box) -> int:
        """Of a row with what the optimizer keeps of it."""
        return box.columns + {"none": 0, "row": 1, "element": box.columns}[self.state]


@dataclass(frozen=True)
class Placed:
    """Boxes of tables, as each member of an axis has them."""

    tables: tuple[Table, ...]
    boxes: tuple[Box, ...]
    elements: int

    @staticmethod
    def of(tables: Sequence[Sequence], boxes: Sequence[Sequence], elements: int) -> Placed:
        """From an operator's arguments (``arguments``)."""
        return Placed(tuple(Table(*t) for t in tables), tuple(Box(*b) for b in boxes), elements)

    @property
    def arguments(self) -> tuple[tuple, tuple]:
        """Tables and boxes as plain tuples, which stand in a graph and in an exported program."""
        return tuple(map(astuple, self.tables)), tuple(map(astuple, self.boxes))

    def of_members(self, ways: int) -> list[list[Box]]:
        """The boxes of each member; every one lies within one member's part."""
        share = self.elements // ways
        found: list[list[Box]] = [[] for _ in range(ways)]
        for box in self.boxes:
            assert box.start // share == max(box.start, box.stop - 1) // share, f"{box} lies on two of {ways} members"
            found[box.start // share].append(box)
        return found

    def offsets(self) -> list[int]:
        """The first column of each table in the result."""
        starts = [0]
        for table in self.tables:
            starts.append(starts[-1] + table.width * table.places)
        return starts

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.offsets()[-1]

    def indexed(self, boxes: Sequence[Box]) -> list[int]:
        """The tables that some boxes are of, each once."""
        return sorted({box.table for box in boxes})

    def looked_up(self, boxes: Sequence[Box], asked: int) -> tuple[int, int]:
        """(rows of some boxes that are looked up for ``asked`` rows of the batch, at most; their elements)."""
        rows = [min(box.rows, asked * self.tables[box.table].length) for box in boxes]
        return sum(rows), sum(count * box.columns for count, box in zip(rows, boxes, strict=True))

    def columns(self, boxes: Sequence[Box]) -> int:
        """Columns that looking up some boxes gives for each row of the batch."""
        return sum(box.columns * self.tables[box.table].places for box in boxes)
