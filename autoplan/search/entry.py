"""What the rest of the program calls: the best plan, what stands beside it, and how the search went."""

from __future__ import annotations

import time
from collections.abc import Sequence

from autoplan.arguments.values import check_effort
from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import Alternative, Chosen, SearchReport
from autoplan.ir.graph import Model
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import Constraint
from autoplan.search.budget import budget_of
from autoplan.search.chosen import choose
from autoplan.search.driver import best_plan
from autoplan.search.explain.alternatives import alternatives
from autoplan.search.explain.does_not_fit import does_not_fit
from autoplan.search.explain.dp_axis_check import check_data_axis
from autoplan.search.intra_op.solve import solver_name
from autoplan.search.space.coverage import left_out, searched
from autoplan.search.state import SearchState, begin


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
    effort       "full", or "fast": operators solved once for each tensor axis and priced for a few microbatches, the
                 plan bounded by the devices' peak alone; the three classical choices beside it, no price of a pin

    Raises ParallelismError where what is pinned can't be, DoesNotFitError where nothing fits, NoRuleError for an
    operator that nobody has said how to split.
    """
    check_effort(effort)
    start = time.perf_counter()
    work = begin(model, cluster, training, parallelism, constraints, budget_of(effort))
    prepared_s = time.perf_counter() - start
    best = best_plan(work, parallelism)
    if best is None:
        raise does_not_fit(work, parallelism)
    chosen = choose(best, work)
    gap = 1 - chosen.predicted.mfu if work.budget.quick else work.gap(best)
    searched_s = time.perf_counter() - start
    data_axis = check_data_axis(work.operators, best.candidate, searched_s) if effort == "full" else ""
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
    report = SearchReport(
        work.operators.variables, work.operators.constraints, gap, len(work.found), solver_name(),
        searched(work.bounds), (*left_out(work.limits, parallelism, work.bounds), *left_unsolved(work)), seconds,
        data_axis,
    )  # fmt: skip
    return chosen, others, report


def left_unsolved(work: SearchState) -> tuple[str, ...]:
    """What a full search leaves out where a model has many operators, or the solver was out of time."""
    many, most = work.prepared.many, work.budget.many_operators
    large = (f"operators of their own for each microbatch, since the blocks have {many:,}",) if many > most else ()
    late = sorted(set(work.operators.unsolved.values()))
    return (*large, *([f"{'; '.join(late)}, whose operators the solver didn't find in time"] if late else []))
