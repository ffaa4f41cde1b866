"""The search: settings sorted by what they can't undercut, priced until none can beat the best."""

from __future__ import annotations

import time
from collections.abc import Sequence

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import Alternative, Chosen, SearchReport
from autoplan.ir.graph import Model
from autoplan.options import Inference, Parallelism, Training, check_effort
from autoplan.rules.constraints import Constraint
from autoplan.search.evaluate import Evaluated
from autoplan.search.explain.alternatives import alternatives
from autoplan.search.explain.dp_axis_check import check_data_axis
from autoplan.search.explain.fit import does_not_fit
from autoplan.search.factoring import beside_whole_weights, refined
from autoplan.search.host_memory import hosted
from autoplan.search.intra_op.solve import solver_name
from autoplan.search.result import choose
from autoplan.search.space.candidates import Setting
from autoplan.search.state import HOST_SAVES, Work, begin, candidates


def search(
    model: Model,
    cluster: ClusterSpec,
    training: Training | Inference,
    parallelism: Parallelism,
    constraints: Sequence[Constraint] = (),
    effort: str = "full",
) -> tuple[Chosen, tuple[Alternative, ...], SearchReport]:
    """The fastest plan of a model on a cluster that exceeds no device's memory, and what else was priced.

    model        shapes are those of the whole batch of one optimizer step
    parallelism  fields that are not None are kept; the others are searched
    effort       "full", or "fast": operators solved once for each tensor axis and priced for a few microbatches,
                 the gap proven against the devices' peak alone; the three classical choices beside the plan, no price
                 of a pin

    Raises ParallelismError where what is pinned can't be, DoesNotFitError where nothing fits, NoRuleError for an
    operator that nobody has said how to split.
    """
    check_effort(effort)
    start = time.perf_counter()
    work = begin(model, cluster, training, parallelism, constraints, quick=effort == "fast")
    prepared_s = time.perf_counter() - start
    best, possible = best_plan(work, parallelism)
    if best is None:
        raise does_not_fit(work, parallelism)
    chosen = choose(best, work)
    gap = 1 - chosen.predicted.mfu if work.operators.quick else work.gap(best, possible, cluster.usable_bytes)
    searched_s = time.perf_counter() - start
    data_axis = check_data_axis(work.operators, best.setting, searched_s) if effort == "full" else ""
    checked_s = time.perf_counter() - start - searched_s
    others = alternatives(work, best, parallelism, effort)
    seconds = (
        ("batch", prepared_s),
        ("operators", work.operators.seconds),
        ("stages", work.evaluator.seconds),
        ("search", searched_s),
        ("data axis", checked_s),
        ("alternatives", time.perf_counter() - start - searched_s - checked_s),
    )
    problems = work.operators
    sizes = (problems.variables, problems.constraints)
    report = SearchReport(*sizes, gap, len(work.found), solver_name(), seconds, data_axis)
    return chosen, others, report


def best_plan(work: Work, parallelism: Parallelism) -> tuple[Evaluated | None, list[Setting]]:
    """The best plan under the cluster's wall, and the settings that it is the best of; None where nothing fits on the
    devices alone."""
    wall, possible = work.cluster.usable_bytes, candidates(work.limits, parallelism)
    best = work.best(possible, wall) or work.at_last(possible, wall)
    if best is None:
        return None, possible
    offloading = hosted(work, parallelism)
    best = work.best(offloading, wall, best, HOST_SAVES) or best
    if work.operators.quick:
        best = beside_whole_weights(work, work.settled(best, wall), parallelism, wall)
    else:
        best = refined(work, best, parallelism, wall)
    return best, possible + offloading
