"""Tensor axes that are worth factoring into several: those over which some product or attention doesn't divide.

It does divide over a part of them (two heads of keys and values on eight ranks). On two axes such an operator is split
on one of them by what divides, and on the other by what else there is.

On links that are alike one axis can do what two can do wherever sizes divide, so nothing else is tried, and of those
only factors over which every operator at its quickest takes less than over one axis; an axis over several nodes is
factored where it is pinned (``candidates.factorings``).

And the tensor axis may do no more than split the tables of a vocabulary. An operator problem prices the sums of whole
weights' gradients as they are; a step hides them under its backward. So that one is tried apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism
from autoplan.rules.strategies import axis_strategies
from autoplan.search.bounds.floors import lower_bound
from autoplan.search.evaluate import Evaluated
from autoplan.search.intra_op.problem_inputs import Prepared
from autoplan.search.operator_problems import uses_tensor_axis
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState

DATA = "dp"
TABLES = "vocab-parallel"


def refined(work: SearchState, best: Evaluated, pinned: Parallelism, memory_limit: float) -> Evaluated:
    """The best plan, or the same candidate on a factored tensor axis where that is quicker."""
    one_axis = not best.candidate.tensor and not best.candidate.folding.axes and best.candidate.cp == 1
    if pinned.tensor is not None or pinned.tensor_system is not None or not one_axis:
        return best
    one_axis_s = lower_bound(work.operators, best.candidate)
    for candidate in factored(work.prepared, best.candidate):
        saves = 1 - work.budget.tolerance
        limit_s, stands = best.step_s * saves, work.infeasibility(candidate) is None
        if stands and lower_bound(work.operators, candidate) < min(limit_s, one_axis_s * saves):
            found = work.evaluate(candidate, memory_limit, limit_s)
            best = found if found is not None and found.step_s < limit_s else best
    return beside_whole_weights(work, best, pinned, memory_limit)


def beside_whole_weights(work: SearchState, best: Evaluated, pinned: Parallelism, memory_limit: float) -> Evaluated:
    """The best plan, or, where that is quicker, its mesh with tables split alone."""
    asked = pinned.tensor is not None or pinned.tensor_system is not None
    if asked or uses_tensor_axis(pinned) or best.candidate.tp == 1 or best.candidate.tensor or best.candidate.pp > 1:
        return best
    limit_s = best.step_s * (1 - work.budget.tolerance)
    try:
        own = work.pinned_to(replace(pinned, tensor_system=TABLES))
        found = own.evaluate(replace(best.candidate, tensor_system=TABLES), memory_limit, limit_s)
    except ParallelismError:  # there is no table, or its rows don't divide
        return best
    return found if found is not None and found.step_s < limit_s else best


def factored(prepared: Prepared, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate on two tensor axes, for every part of its tensor axis over which something more divides."""
    parts = sorted({part for part in parts_that_divide(prepared, candidate.tp)})
    for part in parts:
        for tensor in dict.fromkeys(((candidate.tp // part, part), (part, candidate.tp // part))):
            yield replace(candidate, tensor=tensor)


def parts_that_divide(prepared: Prepared, tp: int) -> Iterator[int]:
    """Of the factors of products and attentions, those of the batch's rows aside, what they have in common with tp
    where tp doesn't divide them."""
    for index, operators in enumerate(prepared.operators):
        for name, operator in operators.items():
            if operator.rule.cost not in ("matmul", "attention"):
                continue
            rows = prepared.batch[DATA].strategies[index, name].factor
            ways = axis_strategies(operator.rule, operator.operands, operator.carries)
            for factor in {way.factor for way in ways} & set(operator.sizes) - {rows}:
                part = math.gcd(operator.sizes[factor], tp)
                if 1 < part < tp:
                    yield part
