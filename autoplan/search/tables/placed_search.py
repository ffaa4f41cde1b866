"""The search of models with embedding tables, which are placed on devices first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autoplan.cluster import ClusterSpec
from autoplan.cost.operators.lookups import SECTOR_BYTES, ByteSeconds
from autoplan.cost.operators.sparse_rows import whole_because, with_rows
from autoplan.cost.step import optimizer_passes, optimizer_states, stored_ratio
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.choice import Alternative, Chosen, SearchReport
from autoplan.ir.graph import DTYPE_BYTES, Model, batch_rows
from autoplan.ir.record import Asked
from autoplan.ir.tables import KINDS
from autoplan.option_values import ELEMENTWISE, ROWWISE
from autoplan.options import Inference, Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.space.systems import resolve
from autoplan.search.tables.place import REPLICATED, Choice, Rates, Traffic, boxes_of, place
from autoplan.search.tables.table_groups import Found as FoundTable
from autoplan.search.tables.table_groups import grouped, tables_of

SYSTEM = "table-parallel"
WALL_SHARE = 0.9  # of a device's memory, that parameters and what belongs to them may take


Found = tuple[Chosen, tuple[Alternative, ...], SearchReport]


def search_with_tables(
    model: Model, cluster: ClusterSpec, training: Training | Inference, pinned: Parallelism, asked: Asked
) -> tuple[Model, Found]:
    """The search's answer, and the model that it is of: with tables placed where that is asked for, and where nothing
    is pinned and it is quicker, or all that fits. Raises as ``search`` does."""
    model = with_rows(model, sparse=False)  # what was so in another plan needn't be in this one
    if pinned.tensor_system == SYSTEM:
        return with_tables(model, cluster, training, pinned, asked)
    if pinned.pinned() or asked.constraints or not recommends(model):
        return model, search(model, cluster, training, pinned, asked.constraints, asked.effort)
    beside = resolve(SYSTEM, cluster) if cluster.devices > 1 else None
    try:
        plain = search(model, cluster, training, pinned, asked.constraints, asked.effort)
    except DoesNotFitError:
        if beside is None:
            raise
        return with_tables(model, cluster, training, beside, asked)
    try:
        trial = None if beside is None else with_tables(model, cluster, training, beside, replace(asked, effort="fast"))
    except (DoesNotFitError, ParallelismError) as error:
        return model, beside_it(plain, Alternative(SYSTEM, Parallelism(), math.inf, 0, f"{error.value}: {error.cause}"))
    if trial is None:
        return model, plain
    other = trial[1][0]
    if other.predicted.step_time_s < plain[0].predicted.step_time_s:
        return with_tables(model, cluster, training, other.parallelism, asked)
    return model, beside_it(plain, Alternative(SYSTEM, other.parallelism, other.predicted.step_time_s, 0))


def recommends(model: Model) -> bool:
    """Whether a model looks like a recommender: several tables, of each of which a row of the batch has one vector."""
    return sum(found.table.places == 1 for found in tables_of(model)) > 1


def beside_it(found: Found, other: Alternative) -> Found:
    """With another alternative among those of a plan, in their order."""
    chosen, alternatives, report = found
    left = [a for a in alternatives if a.name != SYSTEM]
    ranked = sorted([other, *left], key=lambda a: (bool(a.why_not), a.over_bytes, a.step_time_s))
    return chosen, tuple(ranked), report


def with_tables(
    model: Model, cluster: ClusterSpec, training: Training | Inference, pinned: Parallelism, asked: Asked
) -> tuple[Model, Found]:
    """The plan with tables placed on the devices of a node; where that doesn't fit, and no size is pinned, of all
    nodes."""
    sizes = [pinned.tp] if asked.parallelism.tp else list(dict.fromkeys((pinned.tp, cluster.devices)))
    for last, tp in zip((*(False for _ in sizes[1:]), True), sizes, strict=True):
        try:
            grouped_model, asked_for = placed(model, cluster, training, replace(pinned, tp=tp))
            found = search(grouped_model, cluster, training, asked_for, asked.constraints, asked.effort)
        except DoesNotFitError:
            if last:
                raise
        else:
            return grouped_model, found
    raise AssertionError("the last size gave a plan or an error")


def placed(
    model: Model, cluster: ClusterSpec, training: Training | Inference, pinned: Parallelism
) -> tuple[Model, Parallelism]:
    """The model whose tables lie in one flat parameter over ``pinned.tp`` devices, as is cheapest; those that are best
    replicated are left as they are. Every device has rows of each microbatch: where nothing else is pinned, of one.

    ParallelismError where the model has no such tables, or an optimizer looks at whole ones.
    """
    found, ways = tables_of(model), pinned.tp or cluster.devices_per_node
    if not found:
        raise ParallelismError(
            f"parallelism={SYSTEM!r}", "the model has no tables that are looked up by rows of the batch, each once",
            "use another system, such as 'zero3'",
        )  # fmt: skip
    if isinstance(training, Training) and not {*training.optimizers} <= {*ELEMENTWISE, ROWWISE}:
        raise ParallelismError(
            f"optimizer={training.optimizer!r}", "it looks at whole parameters, and placed tables lie in one",
            f"use one of {', '.join((*ELEMENTWISE, ROWWISE))}",
        )  # fmt: skip
    names = model.parameter(found[0].parameter).names
    sparse = not whole_because(training, pinned, ways == cluster.devices, names)
    chosen = choices(model, found, cluster, training, ways, sparse)
    kept = [(each, choice) for each, choice in zip(found, chosen, strict=True) if choice != REPLICATED]
    tables = [each.table for each, _ in kept]
    model = grouped(model, [each for each, _ in kept], boxes_of(tables, [choice for _, choice in kept], ways))
    model = with_rows(model, sparse)
    if pinned.micro_batch is None:
        pinned = replace(pinned, micro_batch=batch_rows(model) // (cluster.devices // ways))
    return model, pinned


def choices(
    model: Model, found: Sequence[FoundTable], cluster: ClusterSpec, training: Training | Inference, ways: int,
    sparse: bool = False,
) -> tuple[Choice, ...]:  # fmt: skip
    """One for each table; at least one table is placed. ``sparse``: of those gradients are of looked-up rows alone."""
    tables = [each.table for each in found]
    itemsize = DTYPE_BYTES[found[0].node.type.dtype]
    traffic = Traffic(batch_rows(model), ways, itemsize, SECTOR_BYTES)
    rates = rates_of(model, found, cluster, training, ways, sparse)
    chosen = place(tables, traffic, rates)
    return place(tables, traffic, rates, KINDS) if all(choice == REPLICATED for choice in chosen) else chosen


def rates_of(
    model: Model, found: Sequence[FoundTable], cluster: ClusterSpec, training: Training | Inference, ways: int,
    sparse: bool = False,
) -> Rates:  # fmt: skip
    """Seconds by the cluster's prices; the memory limit less what the other parameters take. With gradients of
    looked-up rows alone (``sparse``) what is filled and updated are these."""
    itemsize = DTYPE_BYTES[found[0].node.type.dtype]
    stored = itemsize * stored_ratio(training)
    bytes_s = ByteSeconds.of(cluster.topology(), ways, optimizer_passes(training))
    gradients = 1 if isinstance(training, Training) else 0
    computed = itemsize if stored > itemsize else 0  # beside the master
    held = stored * (1 + gradients * (not sparse) + optimizer_states(training)) + computed
    taken = {each.parameter for each in found}
    others = sum(p.type.elements for p in model.parameters if p.name not in taken)
    return Rates(
        per_element_s=0.0 if sparse else stored * bytes_s.stored,
        per_read_byte_s=bytes_s.read,
        per_vector_byte_s=bytes_s.sent,
        per_summed_s=stored * (bytes_s.summed + bytes_s.stored * sparse),  # what is replicated has whole ones
        most_elements=max(0.0, WALL_SHARE * cluster.usable_bytes / held - others),
        per_updated_s=stored * bytes_s.stored * sparse,
    )
