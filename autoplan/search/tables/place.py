"""Which device has which table: an assignment of least seconds under each device's memory limit, by ILP.

A table is placed whole on one device, by its rows over all of them, by its columns, or replicated: every device looks
up its own rows of the batch, and gradients are summed. Each device has some loads, which are priced by what the
fullest one carries, since all wait for it:

    seconds = max reads · s/byte  +  max vectors · s/byte  +  max elements · s/element  +  summed elements · s/element

reads are random ones of rows, vectors what a device sends back (a table split by rows sends whole vectors from every
device), elements what it stores, fills with zeros and updates, summed those of what is replicated. Where gradients are
of looked-up rows alone it fills and updates these in the place of all elements that it stores. torchrec's planner
has the same ways and loads (Ivchenko et al. 2022, "TorchRec: a PyTorch domain library for recommendation systems").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.tables import Box, Placed, Table
from autoplan.solver.arrays import ArrayProgram
from autoplan.solver.engines import Infeasible, engine

PRIMES = 2 * 3 * 5 * 7 * 11 * 13
TIME_LIMIT_S, GAP = 20.0, 1e-4
Choice = tuple[str, int]
"""(kind, device): a table on a device, or ("rows", -1), ("columns", -1), ("replicated", -1)."""
REPLICATED: Choice = ("replicated", -1)


@dataclass(frozen=True)
class Load:
    """What one device has of one table, or of all.

    elements  stored
    reads     bytes read at random for one step's batch
    vectors   bytes sent back, forward and, as gradients, backward
    summed    of the elements those whose gradients are summed over all devices
    updated   of the elements of parts those of rows that one step looks up, at most
    """

    elements: float = 0.0
    reads: float = 0.0
    vectors: float = 0.0
    summed: float = 0.0
    updated: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Load)))


@dataclass(frozen=True)
class Rates:
    """Seconds of what the fullest device carries, and how much it may store."""

    per_element_s: float
    per_read_byte_s: float
    per_vector_byte_s: float
    per_summed_s: float = 0.0
    most_elements: float = math.inf
    per_updated_s: float = 0.0

    @property
    def each(self) -> Mapping[str, float]:
        """By a load's name."""
        rates = (
            self.per_element_s, self.per_read_byte_s, self.per_vector_byte_s, self.per_summed_s, self.per_updated_s,
        )  # fmt: skip
        return dict(zip((f.name for f in fields(Load)), rates, strict=True))

    def seconds(self, loads: Sequence[Load]) -> float:
        return sum(rate * max(getattr(load, name) for load in loads) for name, rate in self.each.items())


@dataclass(frozen=True)
class Traffic:
    """How often tables are looked up, and in how many bytes.

    rows      of the whole batch, over ``ways`` devices
    itemsize  bytes of an element
    sector    bytes of a row that memory gives at least
    """

    rows: int
    ways: int
    itemsize: int
    sector: int = 64

    def load(self, table: Table, share_rows: float, columns: int, rows: int) -> Load:
        reads = self.rows * table.length * share_rows * max(columns * self.itemsize, self.sector)
        vectors = 2.0 * self.rows * table.places * columns * self.itemsize
        updated = min(rows, self.rows * table.length) * columns
        return Load(rows * columns, reads, vectors, updated=updated)

    def loads(self, table: Table, choice: Choice) -> list[Load]:
        """Of each device under a choice."""
        kind, device = choice
        if kind == "rows":
            part = -(-table.rows // self.ways)
            return [self.load(table, 1 / self.ways, table.width, part)] * self.ways
        if kind == "columns":
            return [self.load(table, 1.0, -(-table.width // self.ways), table.rows)] * self.ways
        if choice == REPLICATED:
            own = self.load(table, 1.0, table.width, table.rows)
            return [Load(own.elements, own.reads / self.ways, 0.0, own.elements)] * self.ways
        own = self.load(table, 1.0, table.width, table.rows)
        return [own if m == device else Load() for m in range(self.ways)]

    def choices(self, table: Table) -> list[Choice]:
        """How a table may be placed: a maximum needs all rows at once, parts have to have something."""
        found: list[Choice] = [("table", device) for device in range(self.ways)]
        if table.rows >= self.ways and table.pooling != "max":
            found.append(("rows", -1))
        if table.width >= self.ways:
            found.append(("columns", -1))
        return [*found, REPLICATED]

    def total(self, tables: Sequence[Table], chosen: Sequence[Choice]) -> list[Load]:
        """Of each device under choices for all tables."""
        each = [self.loads(table, choice) for table, choice in zip(tables, chosen, strict=True)]
        return [sum((loads[m] for loads in each), Load()) for m in range(self.ways)]


def place(
    tables: Sequence[Table], traffic: Traffic, rates: Rates, kinds: Sequence[str] | None = None
) -> tuple[Choice, ...]:
    """The choices of least seconds; ``kinds``: those that a table may have, all if None.

    Raises DoesNotFitError where no choices fit below the limit, ParallelismError where the solver finds none in time.
    """
    options = [[c for c in traffic.choices(t) if kinds is None or c[0] in kinds] for t in tables]
    options = [found or traffic.choices(table) for table, found in zip(tables, options, strict=True)]
    lp, per = ArrayProgram(), rates.each
    keys = [(t, choice) for t, found in enumerate(options) for choice in found]
    pick = dict(zip(keys, lp.variables(np.zeros(len(keys)), 1.0, whole=True).tolist(), strict=True))
    loads = {key: traffic.loads(tables[key[0]], key[1]) for key in keys}
    units = {name: max(1.0, sum(getattr(each[0], name) for each in loads.values())) for name in per}
    highest = [rates.most_elements / units[name] if name == "elements" else np.inf for name in per]
    most = dict(zip(per, lp.variables(np.zeros(len(per)), np.array(highest)).tolist(), strict=True))
    for t, found in enumerate(options):
        lp.enter(lp.add_rows(1, 1.0, 1.0), np.array([pick[t, choice] for choice in found]), 1.0)
    for name, variable in most.items():
        for m in range(traffic.ways):
            own = [getattr(loads[key][m], name) / units[name] for key in keys]
            lp.add(0.0, (np.array([variable, *pick.values()]), np.array([1.0, *(-share for share in own)])))
    scale = max((per[name] * units[name] for name in most), default=1.0) or 1.0
    cost = np.zeros(lp.count)
    cost[list(most.values())] = [per[name] * units[name] / scale for name in most]
    try:
        values = engine(lp.program(), TIME_LIMIT_S).run(cost, relaxed=False, gap=GAP).values
        if values is None:
            raise ParallelismError(
                f"{len(tables)} tables on {traffic.ways} devices",
                f"the solver found no placement within {TIME_LIMIT_S:.0f} s",
                "pin tp to fewer devices, or leave tensor_system out",
            )
    except Infeasible:
        raise does_not_fit(tables, traffic, rates) from None
    return tuple(max(found, key=lambda choice: float(values[pick[t, choice]])) for t, found in enumerate(options))


def does_not_fit(tables: Sequence[Table], traffic: Traffic, rates: Rates) -> DoesNotFitError:
    total = sum(table.rows * table.width for table in tables)
    return DoesNotFitError(
        f"{len(tables)} tables of {total:,} elements",
        f"{traffic.ways} devices have room for {rates.most_elements:,.0f} elements each, with optimizer states",
        "use more devices, or an optimizer with fewer states",
    )


def boxes_of(tables: Sequence[Table], chosen: Sequence[Choice], ways: int) -> Placed:
    """The boxes of choices, each device's one after another, and padding behind those of all but the fullest."""
    own: list[list[Box]] = [[] for _ in range(ways)]
    filled = [0] * ways
    for t, (table, choice) in enumerate(zip(tables, chosen, strict=True)):
        for device, (row, rows, column, columns) in parts_of(table, choice, ways):
            own[device].append(Box(t, row, rows, column, columns, filled[device]))
            filled[device] += rows * columns
    share = indivisible(max(filled))
    moved = (
        Box(b.table, b.row, b.rows, b.column, b.columns, b.start + device * share)
        for device, boxes in enumerate(own)
        for b in boxes
    )
    return Placed(tuple(tables), tuple(moved), share * ways)


def indivisible(elements: int) -> int:
    """The next number that none of the first primes divides: so many devices alone, or a divisor of their number, can
    split as many parts of it."""
    return next(n for n in itertools.count(elements) if math.gcd(n, PRIMES) == 1)


def parts_of(table: Table, choice: Choice, ways: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """(device, (first row, rows, first column, columns)) of a choice; some may have one fewer."""
    kind, device = choice
    if kind == "table":
        yield device, (0, table.rows, 0, table.width)
    else:
        size = table.rows if kind == "rows" else table.width
        for m in range(ways):
            first, count = size * m // ways, size * (m + 1) // ways - size * m // ways
            yield m, (first, count, 0, table.width) if kind == "rows" else (0, table.rows, first, count)


def chosen_in(placed: Placed, ways: int) -> Mapping[int, Choice]:
    """The choice that each table's boxes stand for."""
    found: dict[int, Choice] = {}
    for device, boxes in enumerate(placed.of_members(ways)):
        for box in boxes:
            table = placed.tables[box.table]
            if (box.rows, box.columns) == (table.rows, table.width):
                found[box.table] = ("table", device)
            else:
                found[box.table] = ("rows" if box.rows < table.rows else "columns", -1)
    return found
