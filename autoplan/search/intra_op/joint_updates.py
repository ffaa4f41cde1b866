"""The operator problem with what parameters cost once a step as if it were done for all of them together.

The problem prices the sum of each parameter's gradients over the tensor axes as a collective of its own, its update as
a kernel of its own (``Prices.stored_s``). A plan has one collective for all of a stage. Where layers are many or large
the difference is nothing; in a tiny model it decides which operators are the fastest. There the problem is solved with
bytes alone counted, too: no plan undercuts that, and the better of the two answers, each at its price, is taken. One
has about no sums, the other as many as are worth it once there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.cost import Prices
from autoplan.ir.layout import Layout, R
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.template import Decision

MATTERS = 0.05  # of a step, that the difference can be at most where nothing is asked of it


def without_sums(problem: Problem, prices: Prices) -> Problem:
    """The same where no gradient is summed over a tensor axis, so that no such collective begins."""
    axes, kept = prices.mesh.tensor_axes, []
    for group in problem.groups:
        summed = [isinstance(o, Layout) and R in [o.state(a) for a in axes] for o in group.options]
        kept.append(np.flatnonzero([group.key[0] != "stored" or not sums for sums in summed]))
    return problem.with_options(kept)


def begins_s(prices: Prices) -> float:
    """Seconds of a step that sums over a tensor axis begin with at least, if there are any."""
    axes = [a for a in prices.mesh.tensor_axes if prices.mesh.size(a) > 1]
    return min((prices.collective_s("all-reduce", 1, axis) for axis in axes), default=0.0)


def apart_s(decisions: Sequence[Decision], prices: Prices) -> float:
    """Seconds of a step that single sums over the tensor axes begin with, at most, and together need not."""
    begins_s = sum(prices.collective_s("all-reduce", 1, axis) for axis in prices.mesh.tensor_axes)
    return begins_s * sum(decision.stored is not None for decision in decisions)


def farthest_s(problem: Problem, other: Problem) -> float:
    """Seconds of a microbatch by which the problems differ at most."""
    pairs = zip(problem.groups, other.groups, strict=True)
    return sum(float((one.time_s - two.time_s).max(initial=0.0)) for one, two in pairs)
