"""Look-ups in placed tables: random reads on the rank that has most of them, and what crosses to it and back."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.ir.graph import DTYPE_BYTES, Node, TensorType
from autoplan.ir.mesh import Mesh
from autoplan.ir.tables import CACHED, SPARSE, Box, Cached, Placed, Table
from autoplan.option_values import ON_DISK
from autoplan.rules.strategies import Strategy
from cost_models.collective import COLLECTIVES
from cost_models.compute import memory_bound_seconds, update_seconds
from cost_models.hardware import Device, Topology
from cost_models.offload import disk_update_seconds, host_update_seconds, link_seconds

PLACED = "placed_lookups"  # the body of look-ups in tables of which ranks have parts
SECTOR_BYTES = 64  # the least that memory gives of a row: a cache line of a CPU, two sectors of a GPU
MANY_BYTES = 2**28  # at which what a message or a kernel takes besides is no matter
INDEX_BYTES = 4  # as indices travel
ORDERED_BYTES = 256  # of an index in a radix sort, with its place: eight passes, 16 bytes read and written in each
ROW_BYTES = 8  # the number of a row beside its gradient
NUMBER_BYTES = 4  # of the slot of each row of a cached table, on the device
SLOT_BYTES = 25  # of each slot of a cache: its row, how often that was used, its rank, whether it was changed
ORDER_BYTES = 24  # of each slot of a box, for a moment: ranks, and slots by their ranks
PAGE_BYTES = 4096  # that a disk gives of a row at least
PASSES_BACK = 3.0  # over the rows of a gradient: it comes in, a row's sum is read and written


@dataclass(frozen=True)
class CachedTables:
    """Of tables that lie off the device bytes of their elements, of what the optimizer keeps of these, and of the
    device's cache with all that belongs to it; and seconds in which rows that a microbatch misses come there."""

    tables: float = 0.0
    states: float = 0.0
    cache: float = 0.0
    missed_s: float = 0.0

    def __add__(self, other: CachedTables) -> CachedTables:
        sums = self.tables + other.tables, self.states + other.states, self.cache + other.cache
        return CachedTables(*sums, self.missed_s + other.missed_s)


@dataclass(frozen=True)
class Traffic:
    """What a placement moves in one microbatch.

    ways      members that the tables are spread over
    rows      of the batch, on one of them
    itemsize  bytes of a table's element
    sparse    whether gradients are of looked-up rows alone
    cached    where the tables lie off the device, its cache of their rows
    """

    placed: Placed
    ways: int
    rows: int
    itemsize: int
    sparse: bool = False
    cached: Cached | None = None

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

    def missed_s(self, device: Device) -> float:
        """Of rows that a cache lacks: they come over the link, with what the optimizer keeps of them, and as many go
        back, changed. The host reads and writes them at random, and its disks whole pages. The device waits."""
        assert self.cached is not None and device.host is not None, "checked as tables are placed"
        size = self.missed_bytes()
        moved_s = 2 * link_seconds(size, device.host) + host_update_seconds(4 * size, device.host)
        if self.cached.where == ON_DISK:
            assert device.host.disk is not None, "checked as tables are placed"
            moved_s += disk_update_seconds(self.missed_bytes(PAGE_BYTES), device.host.disk)
        return float(moved_s)

    def missed_bytes(self, least: int = 0) -> float:
        """That one microbatch brings to the member that misses most; as many go back. ``least``: of a row."""
        return max(sum(size[1] * max(least, self.row_bytes(box)) for box, size in own) for own in self.caches)

    def row_bytes(self, box: Box) -> int:
        """Of a cached row with what the optimizer keeps of it."""
        assert self.cached is not None
        return self.cached.elements(box) * self.itemsize

    @property
    def caches(self) -> list[list[tuple[Box, tuple[int, int]]]]:
        """Of each member its boxes, with the size of each one's cache (``Cached.boxes``)."""
        assert self.cached is not None
        sizes = {box.start: size for box, size in zip(self.placed.boxes, self.cached.boxes, strict=True)}
        return [[(box, sizes[box.start]) for box in own] for own in self.members]

    def cached_on(self, device: Device) -> CachedTables:
        """Of a member; nothing of tables that lie on the device."""
        if self.cached is None:
            return CachedTables()
        own = self.placed.elements / self.ways * self.itemsize
        rows = sum(box.rows for box in self.placed.boxes) / self.ways * self.itemsize
        states = {"none": 0.0, "row": rows, "element": own}[self.cached.state]
        here = (
            sum(size[0] * (self.row_bytes(box) + SLOT_BYTES) + box.rows * NUMBER_BYTES for box, size in each)
            for each in self.caches
        )
        order = max(slots for slots, _ in self.cached.boxes) * ORDER_BYTES
        return CachedTables(own, states, float(max(here) + order), self.missed_s(device))

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
    node: Node, flat: TensorType, ways: int, rows: int, sparse: bool
) -> Traffic:
    """From an operator's arguments."""
    tables, boxes = node.args[3:5]
    assert isinstance(tables, tuple) and isinstance(boxes, tuple)
    cached = Cached.of(dict(node.kwargs).get(CACHED))
    return Traffic(Placed.of(tables, boxes, flat.elements), ways, rows, DTYPE_BYTES[flat.dtype], sparse, cached)


def by_rows(node: Node, strategy: Strategy, mesh: Mesh) -> bool:
    """Whether a look-up's gradient is of looked-up rows alone: nobody else has the same tables, with whom to sum it."""
    alone = (s.body == PLACED or mesh.size(axis) == 1 or mesh.axis(axis).virtual for axis, s in strategy.axes)
    return bool(dict(node.kwargs).get(SPARSE)) and all(alone)
