"""Plans with a context's or an experts' axis, which few models gain from: tried where they may.

A context axis is tried where others run out: nothing fits, pipelines stand idle, or rows are long. Rows bound data
parallelism, a node bounds tensor parallelism. With few long rows on many devices only stages are left, and too few
microbatches go through them. There the sequence is split over an axis of its own, which may span nodes. Microbatches
have one row: more would hold more, and a long row fills a device.

An experts' axis is tried for mixtures. A tensor axis splits experts too, within a node and with all else that it
splits. An axis of their own may span nodes, and dense weights stay whole along it. There are as many meshes again for
each of its sizes, and operators over two axes are dear to choose. So sizes are tried without a tensor axis first, each
mesh with the microbatch that gives a device about as many rows as it has in the best plan. Where that plan has a
context axis, they are tried beside it as well as without one. The size whose plan is quickest is tried beside each
tensor axis of a node, experts folded over it or each split by it, unless the model has too many operators or the plan
a context axis: operators over three axes are dearer yet. Beside a context axis experts are tried over all ranks of a
row, which leaves two axes. The foldings that win are tried with all other microbatches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated
from autoplan.search.space.candidates import Candidate, all_candidates, divisors
from autoplan.search.state import SearchState

IDLE = 0.2  # share of a step in a pipeline's bubble from which on a context axis is tried
LONG = 32768  # tokens of a row from which on one is tried in any case
LEAST_TOKENS = 1024  # of a row on one device: with fewer its products are too small to be worth an axis
MOST_GATHERED = 16  # ranks that gather each other's keys and values; a ring moves the same bytes under its compute


def wants_context(work: SearchState, best: Evaluated | None) -> bool:
    """Whether the best plan without a context axis may leave much to gain."""
    return best is None or best.timeline.bubble_fraction > IDLE or work.limits.tokens >= LONG


def in_context(work: SearchState, pinned: Parallelism) -> list[Candidate]:
    """Every candidate with a context axis; none where one is pinned, or another system on the tensor axes, or no
    attention runs over a sequence."""
    said = (pinned.cp, pinned.ep, pinned.tensor, pinned.tensor_system, pinned.sequence_parallel)
    tokens = work.limits.tokens
    if any(field is not None for field in said) or not tokens:
        return []
    sizes = [cp for cp in divisors(work.limits.devices) if 1 < cp <= tokens // LEAST_TOKENS and tokens % cp == 0]
    one_row = replace(pinned, micro_batch=pinned.micro_batch or 1)
    found = (s for cp in sizes for s in all_candidates(work.limits, replace(one_row, cp=cp)))
    return work.feasible([s for s in found if is_worth(s, tokens)])


def is_worth(candidate: Candidate, tokens: int) -> bool:
    """Whether a device is left enough of a row, and gathers no more keys and values than is sensible."""
    ways, gathers = candidate.cp * candidate.tp, candidate.cp_attention == "rows"
    return tokens % ways == 0 and tokens // ways >= LEAST_TOKENS and (candidate.cp <= MOST_GATHERED or not gathers)


def over_experts(work: SearchState, pinned: Parallelism, best: Evaluated | None) -> list[Candidate]:
    """Settings with an experts' axis, each mesh with its likeliest microbatch and with no tensor axis unless one is
    pinned; none where such an axis or a system of rows is pinned, or the model has no mixture. The context axis is the
    pinned one, or there is none or the best plan's."""
    said = (pinned.ep, pinned.etp, pinned.tensor, pinned.tensor_system, pinned.sequence_parallel)
    if any(field is not None for field in said) or not work.limits.experts:
        return []
    contexts = {1, 1 if best is None else best.candidate.cp} if pinned.cp is None else {pinned.cp}
    sizes = [ep for ep in divisors(math.gcd(work.limits.devices, work.limits.experts)) if ep > 1]
    alone = (replace(pinned, ep=ep, cp=cp, tp=pinned.tp or 1) for cp in sorted(contexts) for ep in sizes)
    found = (s for own in alone for s in all_candidates(work.limits, own))
    rows = 1.0 if best is None else best.candidate.micro_batch / best.candidate.operator_ways
    return work.feasible(likeliest(found, rows))


def beside_tensor(work: SearchState, pinned: Parallelism, best: Evaluated | None) -> list[Candidate]:
    """Settings with the quickest experts' axis beside a tensor axis, folded over it or not, likewise; none for a model
    of many operators, beside a context axis, or where either axis is pinned."""
    alone = [candidate for candidate in work.bounds if candidate.folding.axes and candidate.cp == 1]
    said = (pinned.ep, pinned.tp)
    many = work.prepared.many > work.budget.folded_operators
    if work.budget.quick or many or any(field is not None for field in said) or not alone:
        return []
    priced = {s: found.step_s for s in alone if (found := work.found.get(s)) is not None}
    known_s = priced or {s: work.bounds[s] for s in alone}
    ep = min(known_s, key=lambda s: (known_s[s], s)).sizes["ep"]
    sizes = [tp for tp in divisors(work.limits.node) if tp > 1]
    beside = (s for tp in sizes for s in all_candidates(work.limits, replace(pinned, ep=ep, tp=tp)))
    rows = 1.0 if best is None else best.candidate.micro_batch / best.candidate.operator_ways
    return work.feasible(likeliest(beside, rows))


def over_rows(work: SearchState, pinned: Parallelism, best: Evaluated | None) -> list[Candidate]:
    """Settings with experts over all ranks that have parts of the same rows, cp and tp together as many as in the best
    plan, likewise; none where it has no context axis, or the experts' or the tensor axis is pinned. The mesh has the
    axes cp and tp alone then."""
    said = (pinned.ep, pinned.etp, pinned.tp, pinned.tensor, pinned.tensor_system, pinned.sequence_parallel)
    if best is None or best.candidate.cp == 1 or work.budget.quick or any(field is not None for field in said):
        return []
    ways = best.candidate.cp * best.candidate.tp
    if not work.limits.experts or work.limits.experts % ways:
        return []
    sizes = [(tp, ways // tp) for tp in divisors(math.gcd(work.limits.node, ways)) if 1 < tp < ways]
    asked = (replace(pinned, ep=ways, etp=1, tp=tp, cp=cp) for tp, cp in sizes if pinned.cp in (None, cp))
    found = (s for own in asked for s in all_candidates(work.limits, own))
    return work.feasible(likeliest(found, best.candidate.micro_batch / best.candidate.operator_ways))


def likeliest(possible: Iterable[Candidate], rows: float) -> list[Candidate]:
    """Those of each mesh whose microbatch gives a device about so many rows."""
    by_mesh: dict[tuple, dict[int, list[Candidate]]] = {}
    for s in possible:
        mesh = (s.pp, s.dp, s.operator_sizes, s.folds)
        by_mesh.setdefault(mesh, {}).setdefault(s.micro_batch, []).append(s)
    found = []
    for (_, _, sizes, _), by_rows in by_mesh.items():
        wanted = math.log(max(rows * math.prod(sizes), sizes[0]))
        found += by_rows[min(by_rows, key=lambda size: (abs(math.log(size) - wanted), size))]
    return found


def beside_experts(work: SearchState, pinned: Parallelism, found: Evaluated) -> list[Candidate]:
    """All sizes of microbatches beside the experts' axis of a plan, on its tensor axis."""
    sizes = found.candidate.sizes
    same = replace(pinned, ep=sizes["ep"], etp=sizes["etp"], cp=sizes["cp"], tp=sizes["tp"])
    return work.feasible([s for s in all_candidates(work.limits, same) if s not in work.found])
