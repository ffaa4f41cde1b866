"""Where each table of a recommender lies, and what it costs to look it up."""

from autoplan.cost.operators.lookups import INDEX_BYTES, read_bytes
from autoplan.cost.step import rows_of, stored_ratio
from autoplan.emit.source import size_text
from autoplan.ir.graph import DTYPE_BYTES, Block, Node, TensorType, batch_rows
from autoplan.ir.mesh import TENSOR
from autoplan.ir.record import PlanRecord
from autoplan.ir.tables import Placed, Table
from autoplan.option_values import ROWWISE
from autoplan.options import Training
from autoplan.report.table import table
from autoplan.search.tables.place import Choice, chosen_in
from autoplan.search.tables.table_groups import LOOKUPS, Found, tables_of

POOLS = {"none": "single"}


def tables_section(record: PlanRecord) -> str:
    """Rows, columns, bytes, place and traffic of each table; "" where none is placed."""
    grouped = [(block, node) for block in record.model.blocks for node in block.nodes if node.op == LOOKUPS]
    if not grouped:
        return ""
    ways = record.chosen.mesh.size(TENSOR[0])
    rows = [row for block, node in grouped for row in placed_rows(record, block, node, ways)]
    rows += [replicated_row(found, record) for found in tables_of(record.model)]
    header = ("table", "rows", "columns", "bytes", "looked up", "placement", "reads a step", "crosses links")
    told = f"Tables, traffic of all devices together in one step\n{table(header, rows, right=(1, 2, 3, 6, 7))}"
    return f"{told}\n{rowwise_text(record)}" if ROWWISE in optimizers_of(record) else told


def optimizers_of(record: PlanRecord) -> tuple[str, ...]:
    return record.training.optimizers if isinstance(record.training, Training) else ()


def rowwise_text(record: PlanRecord) -> str:
    """What the optimizer keeps of tables, by TorchRec's name for it."""
    assert isinstance(record.training, Training)
    how = record.training
    placed = [p for p in record.model.parameters if p.members and len(p.type.shape) == 1]
    flat = [p for p in placed if how.updating(how.group_of(p.names)).optimizer == ROWWISE]
    size = sum(rows_of(p) * DTYPE_BYTES[p.type.dtype] for p in flat) * stored_ratio(how)
    return (
        f"Row-wise Adagrad (TorchRec's EXACT_ROWWISE_ADAGRAD): {size_text(round(size))} of accumulators of the placed "
        "tables, one for each row on each device that has some of it"
    )


def placed_rows(record: PlanRecord, block: Block, node: Node, ways: int) -> list[tuple[str, ...]]:
    flat = block.types()[node.operands[0]]
    given, boxes = node.args[3:5]
    assert isinstance(given, tuple) and isinstance(boxes, tuple)
    placed = Placed.of(given, boxes, flat.elements)
    chosen, names, asked = chosen_in(placed, ways), names_of(record, placed), batch_rows(record.model)
    return [
        (names[i], *figures(placed.tables[i], flat.dtype), place_text(chosen[i]), *traffic(placed, i, flat, asked))
        for i in range(len(placed.tables))
    ]


def names_of(record: PlanRecord, placed: Placed) -> list[str]:
    """The user's name of each table."""
    (flat,) = [p for p in record.model.parameters if p.members and p.type.elements == placed.elements]
    by_start = {member.start: member.source for member in flat.members}
    return [next(by_start[box.start] for box in placed.boxes if box.table == i) for i in range(len(placed.tables))]


def figures(one: Table, dtype: str) -> tuple[str, ...]:
    size = one.rows * one.width * DTYPE_BYTES[dtype]
    return f"{one.rows:,}", str(one.width), size_text(size), f"{POOLS.get(one.pooling, one.pooling)} of {one.length}"


def traffic(placed: Placed, index: int, flat: TensorType, asked: int) -> tuple[str, str]:
    """Rows read at random; indices there, vectors back and their gradients there again."""
    one, itemsize = placed.tables[index], DTYPE_BYTES[flat.dtype]
    boxes = [box for box in placed.boxes if box.table == index]
    read = sum(read_bytes(one, box.rows, box.columns, asked, itemsize) for box in boxes)
    sent = asked * (len(boxes) * one.length * INDEX_BYTES + 2 * placed.columns(boxes) * itemsize)
    return size_text(round(read)), size_text(sent)


def place_text(choice: Choice) -> str:
    kind, device = choice
    return {"table": f"whole on {device}", "rows": "rows on all", "columns": "columns on all"}[kind]


def replicated_row(found: Found, record: PlanRecord) -> tuple[str, ...]:
    """Of a table that every device has: gradients of all of it are summed."""
    one, dtype = found.table, found.node.type.dtype
    size = one.rows * one.width * DTYPE_BYTES[dtype]
    read = read_bytes(one, one.rows, one.width, batch_rows(record.model), DTYPE_BYTES[dtype])
    return found.parameter, *figures(one, dtype), "replicated", size_text(round(read)), f"{size_text(size)} summed"
