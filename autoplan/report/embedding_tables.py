"""Where each table of a recommender lies, and what it costs to look it up."""

from autoplan.cost.operators.lookups import INDEX_BYTES, ROW_BYTES, read_bytes, traffic_of
from autoplan.cost.operators.sparse_rows import is_sparse, whole_because
from autoplan.cost.step import rows_of, stored_ratio
from autoplan.emit.source import size_text
from autoplan.ir.graph import DTYPE_BYTES, Block, Model, Node, TensorType, batch_rows
from autoplan.ir.mesh import TENSOR
from autoplan.ir.record import PlanRecord
from autoplan.ir.tables import CACHED, LOOKUPS, Cached, Placed, Table
from autoplan.option_values import IN_HOST, ON_DISK, ROWWISE
from autoplan.options import Training
from autoplan.report.table import table
from autoplan.search.tables.place import REPLICATED, Choice, chosen_in
from autoplan.search.tables.table_groups import BAG, EMBEDDING, Found, tables_of

DENSE = "dense"  # whole gradients, by TorchRec's name (its ``EmbeddingComputeKernel``), as the others
KERNELS = {IN_HOST: "fused_uvm_caching", ON_DISK: "key_value"}
POOLS = {"none": "single"}


def tables_section(record: PlanRecord) -> str:
    """Rows, columns, bytes, place and traffic of each table; "" where none is placed."""
    grouped = [(block, node) for block in record.model.blocks for node in block.nodes if node.op == LOOKUPS]
    if not grouped:
        return ""
    ways = record.chosen.mesh.size(TENSOR[0])
    rows = [row for block, node in grouped for row in placed_rows(record, block, node, ways)]
    rows += [replicated_row(found, record) for found in tables_of(record.model)]
    header = ("table", "rows", "columns", "bytes", "looked up", "placement", "kernel", "reads a step", "crosses links")
    told = [f"Tables, traffic of all devices together in one step\n{table(header, rows, right=(1, 2, 3, 7, 8))}"]
    told += [gradients_text(record, block, node, ways) for block, node in grouped if optimizers_of(record)]
    cached = [text for block, node in grouped if (text := cache_text(record, block, node, ways))]
    told += [*cached, *([unplaced_text(record.model)] if cached and unplaced(record.model) else [])]
    told += [rowwise_text(record)] if ROWWISE in optimizers_of(record) else []
    return "\n".join(told)


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


def gradients_text(record: PlanRecord, block: Block, node: Node, ways: int) -> str:
    """Whether gradients of placed tables are of all rows, and why."""
    assert isinstance(record.training, Training)
    flat, placed = block.types()[node.operands[0]], placed_of(block, node)
    itemsize = DTYPE_BYTES[flat.dtype] * stored_ratio(record.training)
    own = size_text(round(flat.elements * itemsize / ways))
    if is_sparse(node):
        found = (placed.looked_up(boxes, batch_rows(record.model)) for boxes in placed.of_members(ways))
        most = max(ROW_BYTES * rows + itemsize * elements for rows, elements in found)
        return (
            f"Gradients of placed tables: looked-up rows alone, at most {size_text(round(most))} on a device with "
            f"{own} of tables; the update reads no other rows"
        )
    names = next(p.names for p in record.model.parameters if p.members and p.type.elements == placed.elements)
    why = whole_because(record.training, record.chosen.parallelism, record.cluster.devices == ways, names)
    return f"Gradients of placed tables are as large as these, {own} on a device: {why}"


def kernel_of(node: Node) -> str:
    """How tables are kept and updated, by TorchRec's name for it."""
    cached = Cached.of(dict(node.kwargs).get(CACHED))
    return KERNELS[cached.where] if cached else "fused" if is_sparse(node) else DENSE


def cache_text(record: PlanRecord, block: Block, node: Node, ways: int) -> str:
    """What devices have of tables that lie elsewhere, and what a step is taken to bring there."""
    cached, flat, chosen = Cached.of(dict(node.kwargs).get(CACHED)), block.types()[node.operands[0]], record.chosen
    if cached is None:
        return ""
    rows = batch_rows(record.model) // chosen.microbatches // ways
    traffic = traffic_of(node, flat, ways, rows, sparse=True)
    stored = stored_ratio(record.training)
    own = traffic.cached_on(record.cluster.profile()[0])
    apart = {IN_HOST: "the host's memory", ON_DISK: "the node's disks"}[cached.where]
    missed = traffic.missed_bytes() * chosen.microbatches * stored
    assumed = chosen.parallelism.table_misses
    how = "by Zipf's law" if assumed is None else f"table_misses={assumed:g}"
    placed = placed_of(block, node)
    asked = (rows * ways * placed.tables[box.table].length / placed.tables[box.table].rows for box in placed.boxes)
    looked_up = sum(box.rows * min(1.0, each) for box, each in zip(placed.boxes, asked, strict=True))
    share = sum(count for _, count in cached.boxes) / looked_up
    return (
        f"Tables lie in {apart}, {size_text(round((own.tables + own.states) * stored))} for a device with the "
        f"optimizer's state; its cache has {size_text(round(own.cache * stored))} of rows and what belongs to them. "
        f"Of looked-up rows {100 * share:.0f}% are taken to be missing ({how}): {size_text(round(missed))} a step each "
        "way; program.table_misses() measures it"
    )


def unplaced(model: Model) -> list[str]:
    """Tables that can't lie elsewhere."""
    read = set()
    for segment in model.segments:
        block = model.blocks[segment.block]
        names = dict(zip((p.name for p in block.parameters), segment.parameters, strict=True))
        read |= {names.get(node.operands[0], "") for node in block.nodes if node.op in (BAG, EMBEDDING)}
    return sorted(read - {""} - {found.parameter for found in tables_of(model)})


def unplaced_text(model: Model) -> str:
    return (
        f"On the devices with the other parameters lie {', '.join(unplaced(model))}: only tables that are looked up "
        "once, by rows of the batch, are placed"
    )


def placed_of(block: Block, node: Node) -> Placed:
    given, boxes = node.args[3:5]
    assert isinstance(given, tuple) and isinstance(boxes, tuple)
    return Placed.of(given, boxes, block.types()[node.operands[0]].elements)


def placed_rows(record: PlanRecord, block: Block, node: Node, ways: int) -> list[tuple[str, ...]]:
    flat, placed = block.types()[node.operands[0]], placed_of(block, node)
    chosen, names, asked = chosen_in(placed, ways), names_of(record, placed), batch_rows(record.model)
    return [
        (
            names[i], *figures(placed.tables[i], flat.dtype), place_text(chosen[i]), kernel_of(node),
            *traffic(placed, i, flat, asked),
        )
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
    """Where a table lies, with TorchRec's name for it (its ``ShardingType``)."""
    kind, device = choice
    texts = {
        "table": f"whole on {device} (table_wise)", "rows": "rows on all (row_wise)",
        "columns": "columns on all (column_wise)", "replicated": "replicated (data_parallel)",
    }  # fmt: skip
    return texts[kind]


def replicated_row(found: Found, record: PlanRecord) -> tuple[str, ...]:
    """Of a table that every device has: gradients of all of it are summed."""
    one, dtype = found.table, found.node.type.dtype
    size = one.rows * one.width * DTYPE_BYTES[dtype]
    read = read_bytes(one, one.rows, one.width, batch_rows(record.model), DTYPE_BYTES[dtype])
    sent = f"{size_text(size)} summed"
    return found.parameter, *figures(one, dtype), place_text(REPLICATED), DENSE, size_text(round(read)), sent
