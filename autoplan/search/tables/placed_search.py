"""The search of models with embedding tables, which are placed on devices first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autoplan.cluster import ClusterSpec
from autoplan.cost.operators.lookups import SECTOR_BYTES, ByteSeconds
from autoplan.cost.operators.sparse_rows import kept_of_rows, whole_because, with_rows
from autoplan.cost.step import optimizer_passes, optimizer_states, stored_ratio
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.choice import Alternative, Chosen, SearchReport
from autoplan.ir.graph import DTYPE_BYTES, Model, batch_rows
from autoplan.ir.record import Asked
from autoplan.ir.tables import KINDS
from autoplan.option_values import DEVICE, ELEMENTWISE, IN_HOST, ON_DISK, ROWWISE
from autoplan.options import Inference, Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.space.systems import resolve
from autoplan.search.tables.cached_tables import SHARES, cached, check_cached
from autoplan.search.tables.place import REPLICATED, Choice, Rates, Traffic, boxes_of, place
from autoplan.search.tables.table_groups import Found as FoundTable
from autoplan.search.tables.table_groups import grouped, tables_of
from autoplan.search.tables.ungrouped import ungrouped

SYSTEM = "table-parallel"
LEAST_HERE = 0.01  # of tables behind a cache, what devices have for a look-up at least
WALL_SHARE = 0.9  # of a device's memory, that parameters and what belongs to them may take


Found = tuple[Chosen, tuple[Alternative, ...], SearchReport]


def search_with_tables(
    model: Model, cluster: ClusterSpec, training: Training | Inference, pinned: Parallelism, asked: Asked
) -> tuple[Model, Found]:
    """The search's answer, and the model that it is of: with tables placed where that is asked for, and where nothing
    is pinned and it is quicker, or all that fits. Raises as ``search`` does."""
    model = ungrouped(with_rows(model, sparse=False))  # what was so in another plan needn't be in this one
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
    nodes; and where not even that does, behind caches of as many of their rows as fit."""
    away = pinned.tables in (IN_HOST, ON_DISK)
    ways = [cluster.devices] if away else [pinned.tp, cluster.devices]
    sizes = [pinned.tp] if asked.parallelism.tp else list(dict.fromkeys(ways))
    shares = SHARES if pinned.table_cache is None else (pinned.table_cache,)
    tried = [replace(pinned, tp=tp, table_cache=share) for tp in sizes for share in (shares if away else (None,))]
    if pinned.tables is None:
        behind = replace(pinned, tp=sizes[-1], tables=IN_HOST)
        why = whole_reason(model, cluster, training, behind)
        tried += [replace(behind, table_cache=share) for share in SHARES if not why]
    does_not_fit: DoesNotFitError | None = None
    for each in tried:
        try:
            grouped_model, asked_for = placed(model, cluster, training, each)
            return grouped_model, search(grouped_model, cluster, training, asked_for, asked.constraints, asked.effort)
        except DoesNotFitError as error:
            does_not_fit = does_not_fit or error
    assert does_not_fit is not None, "the last gave a plan or an error"
    if pinned.tables is None and why:
        value, cause, remedy = does_not_fit.value, does_not_fit.cause, does_not_fit.remedy
        raise DoesNotFitError(value, cause, f"{remedy}; or lay tables off the devices (tables={IN_HOST!r}): now {why}")
    raise does_not_fit


def whole_reason(model: Model, cluster: ClusterSpec, training: Training | Inference, pinned: Parallelism) -> str:
    """Why tables can't lie off the devices; "" where they can."""
    found, ways = tables_of(model), pinned.tp or cluster.devices_per_node
    if not found:
        return "the model has none"
    names = model.parameter(found[0].parameter).names
    return check_cached(cluster, pinned) or whole_because(training, pinned, ways == cluster.devices, names)


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
    away = pinned.tables in (IN_HOST, ON_DISK)
    if away and (why := whole_reason(model, cluster, training, pinned)):
        cause = f"a cache has looked-up rows alone: {why}"
        raise ParallelismError(f"tables={pinned.tables!r}", cause, f"change that, or use tables={DEVICE!r}")
    host = cluster.profile()[0].host
    apart = away and host is not None and (not host.own or pinned.tables == ON_DISK)
    here = (pinned.table_cache or 0.0) if apart else 1.0
    chosen = choices(model, found, cluster, training, ways, sparse, here)
    kept = [(each, choice) for each, choice in zip(found, chosen, strict=True) if choice != REPLICATED]
    tables = [each.table for each, _ in kept]
    boxes = boxes_of(tables, [choice for _, choice in kept], ways)
    if pinned.micro_batch is None:
        pinned = replace(pinned, micro_batch=batch_rows(model) // (cluster.devices // ways))
    state = kept_of_rows(training, names) if isinstance(training, Training) else ""
    behind = cached(boxes, pinned, state) if away else None
    return with_rows(grouped(model, [each for each, _ in kept], boxes), sparse, behind), pinned


def choices(
    model: Model, found: Sequence[FoundTable], cluster: ClusterSpec, training: Training | Inference, ways: int,
    sparse: bool = False, here: float = 1.0,
) -> tuple[Choice, ...]:  # fmt: skip
    """One for each table; at least one table is placed. ``sparse``: of those gradients are of looked-up rows alone.
    ``here``: the share of their rows that devices have."""
    tables = [each.table for each in found]
    itemsize = DTYPE_BYTES[found[0].node.type.dtype]
    traffic = Traffic(batch_rows(model), ways, itemsize, SECTOR_BYTES)
    rates = rates_of(model, found, cluster, training, ways, sparse)
    if here < 1:  # what is replicated lies on devices whole
        within = replace(rates, most_elements=rates.most_elements / max(here, LEAST_HERE))
        try:
            return place(tables, traffic, within, KINDS)
        except DoesNotFitError as error:
            cause = f"{error.cause}, of whose rows a cache has {100 * here:g}%"
            raise DoesNotFitError(error.value, cause, f"{error.remedy}, or a smaller table_cache") from None
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
