"""Whole searches of small models under tight walls against trying everything: every way to run the operators, each
priced as a plan. The best is found; eagerly, where operators hold less than their problem counts, what would fit may be
taken not to, and then nothing at all may be found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import StageMemory
from autoplan.options import Parallelism, Training
from autoplan.search.driver import fastest, last_resort
from autoplan.search.evaluate import Evaluated, finish
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.solve import Infeasible, Solution, Weights, measure
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState, begin, candidates
from tests.support.random_problems import random_model
from tests.support.sampling import slow

SAME = 1e-9
CLUSTERS = ("1x2 cpu", "1x4 cpu", "1x2 h100-sxm", "1x4 h100-sxm", "1x4 a100-sxm-80gb", "1x2 a100-sxm-80gb")
MOST = 6_000  # combinations of options that are tried, of which most don't go together
MOST_POINTS = 700  # ways to run the operators that are left, each priced
SHARES = (0.0, 0.1, 0.35, 0.6, 0.9, 1.0)  # of the way from the least that any needs to the most


def asked(seed: int) -> tuple[ClusterSpec, Parallelism, Training]:
    """One stage, whose data axis is what the tensor axis leaves."""
    random = np.random.default_rng(seed + 10_000)
    spec = ClusterSpec.parse(str(random.choice(CLUSTERS)))
    tp = spec.devices if random.random() < 0.8 else 2
    zero = int(random.choice([0, 1])) if tp < spec.devices else None
    rows = int(random.choice([4, 8])) if tp == spec.devices else 4
    training = Training(precision="fp32", compile=bool(random.random() < 0.6))
    return spec, Parallelism(tp=tp, pp=1, zero=zero, micro_batch=rows), training


def begun(seed: int) -> SearchState:
    spec, pins, training = asked(seed)
    return begin(random_model(seed), spec, training, pins)


def points_of(work: SearchState, candidate: Candidate) -> list[IntraOpPlan]:
    """Every way to run the operators; none where there are too many."""
    problem = work.operators.problem(candidate)
    sizes = [range(len(group.options)) for group in problem.groups]
    if math.prod(map(len, sizes)) > MOST:
        return []
    found = [solution for picked in itertools.product(*sizes) for solution in measured(work, candidate, picked)]
    points = [work.operators.taken(candidate, s) for s in found] if len(found) <= MOST_POINTS else []
    return [point for point in points if not work.evaluator.idle(candidate, point)]


def measured(work: SearchState, candidate: Candidate, picked: Sequence[int]) -> Iterator[Solution]:
    try:
        yield measure(work.operators.problem(candidate), Weights(), picked, -math.inf)
    except Infeasible:
        return


def tried(work: SearchState, candidate: Candidate, points: Sequence[IntraOpPlan], wall: float) -> list[Evaluated]:
    found = [work.evaluator.with_point(candidate, point, wall) for point in points]
    return [one for one in found if one is not None]


def check(seed: int) -> int:
    """How many walls were compared under which the fastest operators don't fit."""
    work, binds = begun(seed), 0
    candidate = next(s for s in candidates(work.limits, asked(seed)[1]) if not s.tensor)
    points = points_of(work, candidate)
    ample = tried(work, candidate, points, math.inf)
    needed = [one.memory[0].total for one in ample]
    for share in SHARES if ample else ():
        wall = min(needed) + share * (max(needed) - min(needed))
        best_s = min(one.step_s for one in tried(work, candidate, points, wall))
        anew = begun(seed)
        found = fastest(anew, [candidate], wall)
        assert found is not None or not work.operators.fuses
        if found is None:
            continue
        assert found.over_bytes(wall) == 0
        assert priced_anew(seed, found) == (found.step_s, found.memory)
        assert found.step_s >= best_s * (1 - SAME)
        assert found.step_s <= best_s * (1 + SAME)  # eagerly too, where the bound allows more
        assert found.step_s * (1 - anew.gap(found)) <= best_s * (1 + SAME)
        binds += best_s > min(one.step_s for one in ample) * (1 + SAME)
    return binds


def priced_anew(seed: int, found: Evaluated) -> tuple[float, tuple[StageMemory, ...]]:
    """(seconds, bytes) by a search that has priced nothing else."""
    stage_model = begun(seed).evaluator.costs.stage_model(found.candidate, found.point)
    again = finish(found.candidate, found.point, stage_model, found.stages, found.bound_s)
    return again.step_s, again.memory


@pytest.mark.parametrize(
    ("seeds", "least"), [(range(26, 27), 2), slow((range(0, 160, 2), 3)), slow((range(1, 160, 2), 3))],
    ids=["one", "even", "odd"],
)  # fmt: skip
def test_no_way_to_run_the_operators_is_quicker(seeds: range, least: int) -> None:
    """Of many problems there is nothing to try, or too much; of the one that quick runs take two walls bind."""
    assert sum(check(seed) for seed in seeds) >= least


@pytest.mark.parametrize(("seeds", "least"), [(8, 1), slow((60, 5))])
def test_the_least_that_is_told_is_enough(seeds: int, least: int) -> None:
    """Compiled; also where two segments read one parameter, which stands once."""
    fits = 0
    for seed in range(seeds):
        work = begun(seed)
        candidate = next(s for s in candidates(work.limits, asked(seed)[1]) if not s.tensor)
        assert fastest(work, [candidate], 1.0) is None
        lean = work.evaluator.leanest(candidate)
        if work.operators.fuses and not work.evaluator.idle(candidate, lean.point):
            anew, wall = begun(seed), lean.over_bytes(0)
            assert (fastest(anew, [candidate], wall) or last_resort(anew, [candidate], wall)) is not None
            fits += lean.stage_model.chain.shares
    assert fits >= least


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_of_many_more(part: int) -> None:
    """In fifths: of one tenth of the problems two have walls that bind, of another nine."""
    assert sum(check(seed) for seed in range(160 + part, 2400, 5)) >= 20
