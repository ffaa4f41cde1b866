"""When nothing fits: what is needed, what dominates, and the nearest remedies, each planned before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.options import Parallelism, Training
from autoplan.search.choice import StageMemory
from autoplan.search.evaluate import Evaluated
from autoplan.search.result import recomputation
from autoplan.search.work import Work, begin, candidates

MOST_NODES = 64  # times the nodes given, beyond which more nodes are no remedy
GB = 1e9


def does_not_fit(work: Work, pinned: Parallelism) -> DoesNotFitError:
    """The error for a model, cluster and pinned fields of which no plan fits."""
    cluster, wall = work.cluster, work.cluster.usable_bytes
    nearest = work.leanest(candidates(work.limits, pinned), wall)
    stage, memory = fullest(nearest)
    kind, size = max(((f.name, getattr(memory, f.name)) for f in fields(memory)), key=lambda pair: pair[1])
    s = nearest.setting
    states = sum((m.parameters + m.gradients + m.optimizer) * s.tp * s.dp for m in nearest.memory)
    cause = (
        f"does not fit: {model_text(work)} needs {memory.total / GB:.1f} GB on a device at the least "
        f"(dp={s.dp} tp={s.tp} pp={s.pp}, ZeRO-{s.zero}, stage {stage}), of which {size / GB:.1f} GB are {kind}, and "
        f"each of {cluster} offers {wall / GB:.1f} GB; its states take {states / GB:.0f} GB of the cluster's "
        f"{wall * cluster.devices / GB:.0f} GB"
    )
    remedies = list(dict.fromkeys(list_remedies(work, pinned, kind)))
    remedy = f"Nearest that fits: {', or '.join(remedies)}" if remedies else "Nothing near fits: give a smaller batch"
    return DoesNotFitError(work.prepared.model.name, cause, remedy)


def fullest(found: Evaluated) -> tuple[int, StageMemory]:
    return max(enumerate(found.memory), key=lambda pair: pair[1].total)


def model_text(work: Work) -> str:
    elements = sum(p.type.elements for p in work.prepared.model.parameters)
    count = f"{elements / 1e9:.1f} billion" if elements >= 1e9 else f"{elements / 1e6:.1f} million"
    training = work.training
    with_what = f" with {training.optimizer} in {training.precision}" if isinstance(training, Training) else ""
    return f"{count} parameters{with_what}"


def list_remedies(work: Work, pinned: Parallelism, kind: str) -> Iterator[str]:
    """Fields that are pinned and would fit when freed; then the fewest nodes that hold it."""
    for name in pinned.pinned():
        if name in ("virtual_stages", "offload", "sequence_parallel"):
            continue
        freed = replace(pinned, **{name: None})
        found = plan(work, freed, work.cluster)
        if found is not None:
            yield f"{name}={value_of(found, name)} in place of {name}={getattr(pinned, name)}"
            return
    nodes = fewest_nodes(work, pinned)
    if nodes is not None:
        yield f"{nodes} nodes"
    elif pinned.pinned():
        free = fewest_nodes(work, Parallelism())
        if free is not None:
            yield f"{free} nodes with nothing pinned"


def value_of(found: Evaluated, name: str) -> object:
    value = recomputation(found.stages) if name == "recompute" else getattr(found.setting, name)
    return repr(value) if isinstance(value, str) else value


def plan(work: Work, pinned: Parallelism, cluster: ClusterSpec) -> Evaluated | None:
    """A plan of the same model that fits, or None."""
    try:
        own = begin(work.prepared.model, cluster, work.training, pinned, work.prepared.constraints)
        return own.first(candidates(own.limits, pinned), cluster.usable_bytes)
    except ParallelismError:
        return None


def fewest_nodes(work: Work, pinned: Parallelism) -> int | None:
    """Doubles the nodes until a plan fits, then looks between for the fewest that do."""
    low = work.cluster.nodes
    high = 2 * low
    while plan(work, pinned, work.cluster.with_nodes(high)) is None:
        low, high = high, 2 * high
        if high > MOST_NODES * work.cluster.nodes:
            return None
    for nodes in range(low + 1, high):
        if plan(work, pinned, work.cluster.with_nodes(nodes)) is not None:
            return nodes
    return high
