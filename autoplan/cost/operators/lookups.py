"""Look-ups in placed tables: random reads on the rank that has most of them, and what crosses to it and back."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.ir.graph import DTYPE_BYTES, Node
from autoplan.ir.mesh import Mesh
from autoplan.ir.tables import SPARSE, Box, Placed, Table
from autoplan.rules.strategies import Strategy
from cost_models.collective import COLLECTIVES
from cost_models.compute import memory_bound_seconds, update_seconds
from cost_models.hardware import Device, Topology

PLACED = "placed_lookups"  # the body of look-ups in tables of which ranks have parts
SECTOR_BYTES = 64  # the least that memory gives of a row: a cache line of a CPU, two sectors of a GPU
MANY_BYTES = 2**28  # at which what a message or a kernel takes besides is no matter
INDEX_BYTES = 4  # as indices travel
ORDERED_BYTES = 256  # of an index in a radix sort, with its place: eight passes, 16 bytes read and written in each
ROW_BYTES = 8  # the number of a row beside its gradient
PASSES_BACK = 3.0  # over the rows of a gradient: it comes in, a row's sum is read and written


@dataclass(frozen=True)
class Traffic:
    """What a placement moves in one microbatch.

    ways      members that the tables are spread over
    rows      of the batch, on one of them
    itemsize  bytes of a table's element
    sparse    whether gradients are of looked-up rows alone
    """

    placed: Placed
    ways: int
    rows: int
    itemsize: int
    sparse: bool = False

    def read_bytes(self, box: Box) -> float:
        """Of a box' rows that all members ask for, with indices spread evenly over the table's rows."""
        return read_bytes(self.placed.tables[box.table], box.rows, box.columns, self.rows * self.ways, self.itemsize)

    @property
    def busiest_bytes(self) -> float:
        """Read by the member that reads most."""
        return max(sum(map(self.read_bytes, boxes)) for boxes in self.placed.of_members(self.ways))

    @property
    def result_bytes(self) -> float:
        return self.rows * self.placed.width * self.itemsize

    @property
    def index_bytes(self) -> int:
        """Indices that a member sends, or receives where that is more."""
        members = [sum(self.placed.tables[t].length for t in self.placed.indexed(b)) for b in self.members]
        return self.rows * max(sum(members), self.ways * max(members)) * INDEX_BYTES

    @property
    def vector_bytes(self) -> int:
        """Vectors that a member sends, or receives where that is more."""
        members = [self.placed.columns(boxes) for boxes in self.members]
        return self.rows * max(sum(members), self.ways * max(members)) * self.itemsize

    @property
    def members(self) -> list[list[Box]]:
        return self.placed.of_members(self.ways)

    def forward_s(self, device: Device) -> float:
        """Rows read, pooled vectors written and put side by side."""
        return float(memory_bound_seconds(self.busiest_bytes + 3 * self.result_bytes, device))

    def backward_s(self, device: Device, own_bytes: float) -> float:
        """Rows' gradients added to what is filled with zeros before: as large as the rank's tables, or as the rows that
        were looked up (``sparse``), which are put in order for that."""
        filled = self.gradient_bytes() + self.ordered_bytes if self.sparse else own_bytes
        moved = PASSES_BACK * self.busiest_bytes + 2 * self.result_bytes + filled
        return float(memory_bound_seconds(moved, device))

    def gradient_bytes(self, microbatches: int = 1) -> int:
        """Of gradients of rows that so many microbatches look up, at most, and of these rows' numbers; on the member
        that has most of them."""
        asked = self.rows * self.ways * microbatches
        each = (self.placed.looked_up(boxes, asked) for boxes in self.members)
        return max(ROW_BYTES * rows + elements * self.itemsize for rows, elements in each)

    def untouched_bytes(self, microbatches: int) -> float:
        """Of a member's tables what a step makes no gradient of, and doesn't update."""
        own_bytes = self.placed.elements // self.ways * self.itemsize
        return max(0.0, own_bytes - self.gradient_bytes(microbatches)) if self.sparse else 0.0

    @property
    def ordered_bytes(self) -> int:
        """Moved to find each row that was looked up once; of a box with fewer rows than indices all are taken."""
        asked = self.rows * self.ways
        lengths = [[(self.placed.tables[b.table].length, b.rows) for b in boxes] for boxes in self.members]
        return asked * ORDERED_BYTES * max(sum(n for n, rows in each if asked * n < rows) for each in lengths)


def read_bytes(table: Table, rows: int, columns: int, asked: int, itemsize: int) -> float:
    """Of some rows and columns of a table, looked up for ``asked`` rows of the batch."""
    return asked * table.length * (rows / table.rows) * max(columns * itemsize, SECTOR_BYTES)


@dataclass(frozen=True)
class ByteSeconds:
    """Seconds for a byte that one of the members of an innermost axis reads at random there and back, stores and
    updates, sends to the others, or sums up with theirs."""

    read: float
    stored: float
    sent: float
    summed: float

    @staticmethod
    def of(topology: Topology, ways: int, passes: float) -> ByteSeconds:
        """``passes`` of the optimizer over a parameter's bytes; what is stored is filled with a gradient besides."""
        device, path = topology.device, topology.axis(1, ways)
        memory = float(memory_bound_seconds(MANY_BYTES, device)) / MANY_BYTES
        update = float(update_seconds(MANY_BYTES * passes, device)) / MANY_BYTES
        kinds = ("all-to-all", "all-reduce")
        sent, summed = (float(COLLECTIVES[kind](MANY_BYTES, path)) / MANY_BYTES for kind in kinds)
        return ByteSeconds((1 + PASSES_BACK) * memory, update + memory, sent, summed)


def traffic_of(
    tables: object, boxes: object, elements: int, ways: int, rows: int, dtype: str, sparse: bool
) -> Traffic:
    """From an operator's arguments."""
    assert isinstance(tables, tuple) and isinstance(boxes, tuple)
    return Traffic(Placed.of(tables, boxes, elements), ways, rows, DTYPE_BYTES[dtype], sparse)


def by_rows(node: Node, strategy: Strategy, mesh: Mesh) -> bool:
    """Whether a look-up's gradient is of looked-up rows alone: nobody else has the same tables, with whom to sum it."""
    alone = (s.body == PLACED or mesh.size(axis) == 1 or mesh.axis(axis).virtual for axis, s in strategy.axes)
    return bool(dict(node.kwargs).get(SPARSE)) and all(alone)
