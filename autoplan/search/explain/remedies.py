"""What would make a plan fit, each change planned before it is named.

A change is looked for by bounds first (``least_bytes``: what no plan of a candidate goes below), then by a few
candidates of which one has to fit. What is found is planned by a search of its own, so that the step time that is told
is the one that planning the change gives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autoplan.cluster.spec import MOST_DEVICES
from autoplan.cost.step import optimizer_states
from autoplan.errors import ParallelismError, RescaleError
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import Model, batch_rows
from autoplan.option_values import ON_DISK
from autoplan.options import Parallelism, Training
from autoplan.search.bounds.floors import lower_bound
from autoplan.search.chosen import parallelism_of
from autoplan.search.driver import best_plan
from autoplan.search.evaluate import Evaluated, Evaluator
from autoplan.search.inter_op.parameter_shares import data_axis
from autoplan.search.predict import units
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.pinned_checks import check_offload
from autoplan.search.state import SearchState, begin, candidates
from autoplan.trace.rescale import rescale

MOST_NODES = 64  # times the nodes given, beyond which more nodes are no remedy
TRIES = 12  # candidates that are priced for one remedy
FAILED_TRIES = 6  # candidates of which none fitting says that none will
PLANNED_NODES = 8  # counts of nodes for which a plan is sought, from the fewest that bounds allow
HALVINGS = 6  # of the sequence, beyond which it is another task
SIZES = ("dp", "dp_replicate", "tp", "pp", "cp", "ep", "etp", "cp_attention", "tensor", "tensor_system")


@dataclass(frozen=True)
class Remedy:
    """A change under which a plan fits.

    text    "5 nodes", "1 node with offload='optimizer'", "zero=1 in place of zero=0", "a sequence of 4096"
    found   the plan
    nodes   that it is for
    unit_s  its seconds for each token, or row, of a step
    other   whether the model then trains on something else: a shorter sequence
    """

    text: str
    found: Evaluated
    nodes: int
    unit_s: float
    other: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.found.step_s:.3g} s a step)"


def remedies(work: SearchState, pinned: Parallelism) -> list[Remedy]:
    """Every kind of change that helps, by the seconds that a token then takes; what changes the task comes last."""
    more = next(more_nodes(work, pinned), None)
    fewer = most_nodes(work) if more is None else more.nodes - 1
    found = [*freed(work, pinned), *on_the_host(work, pinned, fewer), *shorter(work, pinned)]
    return sorted([*found, *([] if more is None else [more])], key=lambda remedy: (remedy.other, remedy.unit_s))


def remedy(
    work: SearchState, pinned: Parallelism, text: str, nodes: int, model: Model | None = None
) -> Iterator[Remedy]:
    """A change with the plan that a search of it finds, if it finds one.

    work    of what doesn't fit
    pinned  what is pinned with the change
    model   where the change is of the model
    """
    cluster, own_model = work.cluster.with_nodes(nodes), model or work.prepared.model
    try:
        own = begin(own_model, cluster, work.training, pinned, work.prepared.constraints, work.budget)
        found = best_plan(own, pinned)
    except ParallelismError:
        return
    if found is not None:
        yield Remedy(text, found, nodes, found.step_s / units(own_model), model is not None)


def quick(work: SearchState, pinned: Parallelism) -> Evaluated | None:
    """A plan that fits, the best of a few candidates; None where none of them does.

    They are taken in turn from those that may be fastest, which fit where memory is ample, and from those that need
    least, which fit where it is not.
    """
    small, memory_limit = list(fitting(work, pinned)), work.cluster.usable_bytes
    bounds_s = {candidate: lower_bound(work.operators, candidate) for _, candidate in small}
    turns = zip((s for _, s in sorted(small)), sorted(bounds_s, key=lambda s: (bounds_s[s], s)), strict=True)
    best: Evaluated | None = None
    for number, candidate in enumerate(itertools.islice(dict.fromkeys(itertools.chain.from_iterable(turns)), TRIES)):
        if best is None and number >= FAILED_TRIES:
            break
        limit_s = math.inf if best is None else best.step_s
        found = work.evaluate(candidate, memory_limit, limit_s) if bounds_s[candidate] < limit_s else None
        best = found if found is not None and found.step_s < limit_s else best
    return best


def fits(work: SearchState, pinned: Parallelism) -> bool:
    """Whether some candidate may fit, as far as bounds tell."""
    return next(fitting(work, pinned), None) is not None


def fitting(work: SearchState, pinned: Parallelism) -> Iterator[tuple[float, Candidate]]:
    """(bytes at the least, candidate) of those that may fit; none where what is pinned can't be there."""
    try:
        check_offload(pinned, work.cluster, work.training)
        possible = candidates(work.limits, pinned)
    except ParallelismError:
        return
    for candidate in possible:
        least = work.least_bytes(candidate) if within_host(work, candidate) else math.inf
        if least <= work.cluster.usable_bytes and work.infeasibility(candidate) is None:
            yield least, candidate


def within_host(work: SearchState, candidate: Candidate) -> bool:
    """Whether an even share of what a candidate offloads is no more than the host has."""
    host = work.operators.topology.device.host
    if candidate.offload == "none" or host is None:
        return True
    prices = work.operators.prices(tensor_mesh(candidate.mesh))
    data = data_axis(candidate, prices, optimizer_states(work.training))
    bytes = sum(p.type.bytes for p in work.prepared.model.parameters) / (candidate.tp * candidate.pp)
    return bytes * data.host_share(optimizer_states(work.training)) <= data.host.memory_bytes


def freed(work: SearchState, pinned: Parallelism) -> Iterator[Remedy]:
    """Each pinned field left to the search, the sizes of the mesh together; where no one of them helps, all."""
    given = {name: value for name, value in pinned.pinned().items() if (name, value) != ("offload", "none")}
    groups = [tuple(n for n in SIZES if n in given), *((n,) for n in given if n not in SIZES and n != "offload")]
    some = False
    for names in (*groups, tuple(given)):
        free = replace(pinned, **dict.fromkeys(names))
        found = quick(work.pinned_to(free), free) if names and not (some and names == tuple(given)) else None
        if found is not None:
            some = True
            after = changed(pinned, found, names)
            yield from remedy(work, after, changes(pinned, after, names), work.cluster.nodes)


def changed(pinned: Parallelism, found: Evaluated, names: Sequence[str]) -> Parallelism:
    """What is pinned, these fields as a plan has them."""
    chosen = parallelism_of(found)
    return replace(pinned, **{name: getattr(chosen, name) for name in names})


def changes(before: Parallelism, after: Parallelism, names: Sequence[str]) -> str:
    """"zero=1 in place of zero=0": the fields that are others than were pinned."""
    differing = [name for name in names if getattr(before, name) != getattr(after, name)]
    now, then = ({name: getattr(p, name) for name in differing} for p in (after, before))
    return f"{told(now)} in place of {told(then)}"


def told(fields: dict[str, object]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in fields.items())


def on_the_host(work: SearchState, pinned: Parallelism, most: int) -> Iterator[Remedy]:
    """The optimizer's state in the host's memory, or, where that takes fewer nodes, the parameters too, or that state
    on disks; on no more than ``most`` nodes."""
    if pinned.offload not in (None, "none") or not isinstance(work.training, Training):
        return
    if len(work.training.optimizers) > 1:
        return  # refused with what the host updates
    for kind in ("optimizer", "parameters", ON_DISK):
        few = fewest(partial(on_nodes, work), work.cluster.nodes - 1, most, replace(pinned, offload=kind))
        if few is not None:
            most = few[0] - 1
            text = f"{nodes_text(few[0])} with offload={kind!r}"
            yield from remedy(work, replace(pinned, offload=kind), text, few[0])


def more_nodes(work: SearchState, pinned: Parallelism) -> Iterator[Remedy]:
    """The fewest nodes that hold it; where what is pinned leaves no mesh of more, with the sizes left to the search."""
    given = work.cluster.nodes
    for free in dict.fromkeys((pinned, replace(pinned, **dict.fromkeys(SIZES)))):
        few = fewest(partial(on_nodes, work.pinned_to(free)), given, most_nodes(work), free)
        if few is not None:
            nodes, found = few
            names = [name for name in SIZES if getattr(free, name) != getattr(pinned, name)]
            after = changed(pinned, found, names)
            also = f" with {changes(pinned, after, names)}" if names else ""
            yield from remedy(work, after, nodes_text(nodes) + also, nodes)


def most_nodes(work: SearchState) -> int:
    """That are tried; no cluster has more devices than ``cluster.spec`` lets it."""
    return min(MOST_NODES * work.cluster.nodes, MOST_DEVICES // work.cluster.devices_per_node)


def nodes_text(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def on_nodes(work: SearchState, nodes: int) -> SearchState:
    """The same search on more nodes. A tensor axis within a node lies as it did, and its operators are shared."""
    cluster = work.cluster.with_nodes(nodes)
    topology = cluster.topology()
    alike = topology.levels[0] == work.operators.topology.levels[0]
    inside = {
        key: entry for key, entry in work.operators.known.items()
        if alike and math.prod(key[0]) <= topology.levels[0].size and not key[-1]
    }  # fmt: skip
    operators = replace(work.operators, topology=topology, known=inside)
    limits = replace(work.limits, devices=cluster.devices, node=cluster.devices_per_node)
    evaluator = Evaluator.of(operators, work.training, work.budget)
    work = replace(work, cluster=cluster, limits=limits, operators=operators, evaluator=evaluator)
    return replace(work, found={}, searched=set(), bounds={})


def fewest(own: Callable[[int], SearchState], low: int, most: int, pinned: Parallelism) -> tuple[int, Evaluated] | None:
    """The fewest nodes, more than ``low`` and at most ``most``, on which a plan fits, and it: by bounds the fewest that
    may do, planned from there on."""
    high = low + 1
    if high > most:
        return None
    while not fits(own(high), pinned):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    first = nodes = bisected(low, high, lambda n: fits(own(n), pinned))
    for _ in range(PLANNED_NODES):
        found = quick(own(nodes), pinned) if nodes <= most else None
        if found is not None:
            return nodes, found
        nodes += max(1, (nodes - first) // 2)
    return None


def bisected(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number above ``low`` from which on it holds; it does for ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def shorter(work: SearchState, pinned: Parallelism) -> Iterator[Remedy]:
    """The sequence halved until a plan fits; the batch, where its rows can't be cut into microbatches."""
    model = work.prepared.model
    first = model.batch[0].type
    if len(first.shape) > 1 and not first.floating:
        yield from halved(work, pinned, "a sequence of {}", first.shape[1], lambda n: rescale(model, seq=n))
    if any(axis == "mb" for axis, _ in work.limits.only_one):
        yield from halved(work, pinned, "a batch of {} rows", batch_rows(model), lambda n: rescale(model, batch=n))


def halved(
    work: SearchState, pinned: Parallelism, text: str, size: int, resized: Callable[[int], Model]
) -> Iterator[Remedy]:
    """The first of a few halvings with which a plan fits; none where the model can't follow or even the last is too
    much."""
    sizes = [size >> n for n in range(1, HALVINGS + 1) if size % (1 << n) == 0]
    works = {n: other_model(work, pinned, n, resized) for n in sizes[-1:]}
    if not sizes or (least := works[sizes[-1]]) is None or not fits(least, pinned):
        return
    for n in sizes:
        smaller = works[n] if n in works else other_model(work, pinned, n, resized)
        found = quick(smaller, pinned) if smaller is not None else None
        if smaller is not None and found is not None:
            yield from remedy(work, pinned, text.format(n), work.cluster.nodes, smaller.prepared.model)
            return


def other_model(
    work: SearchState, pinned: Parallelism, size: int, resized: Callable[[int], Model]
) -> SearchState | None:
    """The search of the resized model; None where it can't be resized, or what is pinned can't be with it."""
    try:
        return begin(resized(size), work.cluster, work.training, pinned, work.prepared.constraints)
    except (RescaleError, ParallelismError):
        return None
