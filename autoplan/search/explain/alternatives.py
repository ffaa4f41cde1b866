"""What stands beside the chosen plan: named systems and the best of other meshes, priced by the same function.

A system that pins how a tensor axis is used has operator problems of its own. Of these one is solved for each, for the
microbatch that fills a device about as the best plan's does, and where that doesn't fit for the leanest: so a price is
that of a real plan, and the system's own best microbatch may be a little quicker. Of candidates with several stages on
a rank the stages of one are searched, and those of the others cut without a search (``SearchBudget.beside``). A grid of
tensor axes, whose problem takes as long as many of the search's, is priced only for small blocks, and named otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoplan.errors import ParallelismError
from autoplan.ir.choice import Alternative, PricedCollective
from autoplan.options import Parallelism
from autoplan.search.chosen import parallelism_of
from autoplan.search.driver import fastest
from autoplan.search.evaluate import Evaluated
from autoplan.search.explain.pins import unpinned
from autoplan.search.inter_op.peak_memory import peaks_of
from autoplan.search.predict import bubble_of, collectives
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.systems import ASYNCHRONOUS, CLASSICAL, SYSTEMS, resolve
from autoplan.search.space.tensor_axes import SYSTEMS as GRIDS
from autoplan.search.state import SearchState, candidates

RUNNERS_UP = 5
GRID_NODES = 24  # nodes of all blocks, up to which problems on several tensor axes are solved beside a plan


def alternatives(work: SearchState, best: Evaluated, pinned: Parallelism, effort: str) -> tuple[Alternative, ...]:
    """What the pins cost first; then named systems and the best of every other mesh that was priced: those that fit
    by step time, then those that don't by how much, then those that don't apply.

    effort  "fast": of the named systems the classical ones alone, and no price of the pins
    """
    names = {system: name for name, system in CLASSICAL}
    if effort == "full":
        names |= {system: system for system in SYSTEMS if system not in ("auto", *ASYNCHRONOUS, *names)}
    found = list(named_systems(work, best, names))
    told = {a.parallelism for a in found if not a.why_not}
    found += [a for a in runners_up(work, best) if a.parallelism not in told]
    found.sort(key=lambda a: (bool(a.why_not), a.over_bytes, a.step_time_s))
    free = unpinned(work, best, pinned) if effort == "full" else None
    first = () if free is None else (priced(free[1], free[0], free[2], 0),)
    return (*first, *found)


def named_systems(work: SearchState, best: Evaluated, names: dict[str, str]) -> Iterator[Alternative]:
    """Each named system once, under the first of its names.

    names  of each system, what the report calls it
    """
    seen: set[Parallelism] = set()
    for system, name in names.items():
        try:
            pinned = resolve(system, work.cluster)
            if pinned not in seen:
                seen.add(pinned)
                yield named(work, best, (name, system), pinned, candidates(work.limits, pinned))
        except ParallelismError as error:
            yield Alternative(name, Parallelism(), math.inf, 0, f"{error.value}: {error.cause}")


def named(
    work: SearchState, best: Evaluated, names: tuple[str, str], pinned: Parallelism, possible: Sequence[Candidate]
) -> Alternative:
    """A named system: its fastest plan that leaves the margin, else that fits, else how far the leanest is over; or why
    it isn't priced.

    names  what the report calls it, and what ``parallelism`` does
    """
    name, system = names
    cluster, own = work.cluster, work.pinned_to(pinned).beside()
    if pinned.tensor_system in GRIDS and sum(len(b.nodes) for b in work.prepared.model.blocks) > GRID_NODES:
        said = f"not priced beside a plan: parallelism={system!r} plans it"
        return Alternative(name, pinned, math.inf, 0, said)
    tried = [possible]
    if own.operators is not work.operators or pinned.tensor_system is not None:
        tried = [likeliest(own, possible, best.candidate), leanest(own, possible)]

    def within(memory_limit: float) -> Evaluated | None:
        return next(filter(None, (fastest(own, some, memory_limit) for some in tried)), None)

    found = within(cluster.aimed_bytes)
    if found is None:
        own.check_any_feasible(possible)
        found = own.evaluator.leanest(*leanest(own, possible))
        if found is not None and found.over_bytes(cluster.usable_bytes) == 0:
            found = within(found.over_bytes(0.0)) or found  # as search.driver.best_plan has it
    if found is None:
        return Alternative(name, pinned, math.inf, 0, "no plan of it runs: stages of one rank share a parameter")
    return priced(work, name, found, found.over_bytes(cluster.usable_bytes))


def likeliest(work: SearchState, possible: Sequence[Candidate], best: Candidate) -> list[Candidate]:
    """The candidates with the microbatch that fills a device about as the best plan's does, of those over which rows
    divide, whatever else they differ in: one operator problem."""
    tp = min(s.tp for s in possible)
    wanted = math.log(best.micro_batch * tp / best.tp)
    sizes = sorted({s.micro_batch for s in possible}, key=lambda rows: (abs(math.log(rows) - wanted), rows))
    feasible = (work.feasible([s for s in possible if s.micro_batch == rows]) for rows in sizes)
    return next(filter(None, feasible), [])


def leanest(work: SearchState, possible: Sequence[Candidate]) -> list[Candidate]:
    sized = sorted(possible, key=lambda s: (work.least_bytes(s), s))
    return list(itertools.islice((s for s in sized if work.infeasibility(s) is None), 1))


def runners_up(work: SearchState, best: Evaluated) -> Iterator[Alternative]:
    """The best plan of each mesh, ZeRO level and offload but the chosen ones."""
    best_of: dict[tuple, Evaluated] = {}
    for found in work.found.values():
        if found is not None:
            s = found.candidate
            kind = mesh_of(s)
            if kind not in best_of or found.step_s < best_of[kind].step_s:
                best_of[kind] = found
    b = best.candidate
    best_of.pop(mesh_of(b), None)
    for found in sorted(best_of.values(), key=lambda e: e.step_s)[:RUNNERS_UP]:
        s = found.candidate
        name = f"{s.sizes_text} zero={s.zero}" + f" offload={s.offload}" * (s.offload != "none")
        yield priced(work, name, found, 0)


def mesh_of(s: Candidate) -> tuple:
    """What makes two candidates alternatives to each other: mesh, ZeRO level and offload."""
    return s.pp, s.dp, s.ep, s.cp, s.tp, s.folds, s.inner, s.zero, s.offload


def priced(work: SearchState, name: str, found: Evaluated, over_bytes: int) -> Alternative:
    """A plan as an alternative, with what it waits for."""
    summed: dict[tuple[str, str, str], PricedCollective] = {}
    for one in collectives(found, work.prepared.model):
        key = (whose(one), one.kind, one.axis)
        before = summed.get(key)
        summed[key] = one if before is None else together(before, one)
    longest = max(summed.values(), key=in_the_open, default=None)
    waits = longest if longest is not None and in_the_open(longest) > 0 else None
    account = found.memory[found.fullest].total
    peaks = peaks_of(found.stage_model, found.stages, found.candidate.pp)
    idle_s, peak_bytes = bubble_of(found) * found.step_s, account if over_bytes else max(p.total for p in peaks)
    return Alternative(name, parallelism_of(found), found.step_s, over_bytes, "", waits, idle_s, peak_bytes)


def in_the_open(collective: PricedCollective) -> float:
    """Seconds that no compute hides."""
    return collective.seconds - collective.hidden_s


def whose(collective: PricedCollective) -> str:
    """The block that it stands in, or the border between two stages: each border is other ranks'."""
    return collective.where if collective.axis == "pp" else collective.where.split(" ")[0]


def together(one: PricedCollective, other: PricedCollective) -> PricedCollective:
    """Collectives of one kind in one block, which the report tells as one: under the block's name."""
    return replace(
        one,
        where=whose(one),
        bytes=max(one.bytes, other.bytes),
        count=one.count + other.count,
        seconds=one.seconds + other.seconds,
        hidden_s=one.hidden_s + other.hidden_s,
    )
