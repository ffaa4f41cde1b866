"""One account of memory: the search's arrays, the rows of its program and a finished candidate count the same bytes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from autoplan.cluster import ClusterSpec
from autoplan.cost import DataAxis, Prices
from autoplan.cost.interleaved import ACCUMULATING, SENDING, WAITING, is_interleaved
from autoplan.ir.choice import StageChoice, tensor_mesh
from autoplan.search.block_cost.account import BlockCost
from autoplan.search.block_cost.live import LiveBytes
from autoplan.search.inter_op.chain_costs import ChainCosts, Division, Divisions, chain_costs_of
from autoplan.search.inter_op.interleaved_milp import PartitionMilp
from autoplan.search.inter_op.peak_memory import peaks_of
from autoplan.search.inter_op.rank_memory import HeldParameters
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.space.candidates import Candidate
from tests.support.pipelines import memory_of_stage, random_pipeline

SCHEDULES = [
    ("gpipe", 1, 4), ("1f1b", 1, 4), ("interleaved", 2, 4), ("interleaved", 2, 2), ("zero-bubble", 1, 4),
    ("zero-bubble", 2, 4),
]  # fmt: skip
"""(schedule, stages on each rank, microbatches); with 2 stages go back in turn"""
ROUNDED = 3.0  # bytes by which the parts of a StageMemory are rounded, together
SEEDS = range(12)


def lively(price: BlockCost, rng: random.Random) -> BlockCost:
    """The block with bytes at its moments, of which ``working_bytes`` is the account."""
    kept = price.kept_bytes
    entering = min(price.input_bytes, kept) * rng.randint(0, 1)
    adding = kept + rng.randint(0, 10**6)
    forward = kept - entering + rng.randint(0, 10**6)
    live = LiveBytes(kept, entering, forward, adding + sum(price.parameters.values()), adding)
    return replace(price, live=live, working_bytes=live.working)


def at_random(seed: int, schedule: str, virtual: int, many: int) -> tuple[StageModel, Division]:
    """A chain, some of whose parameters are tied, and a division of it."""
    rng, pipeline = random.Random(seed), random_pipeline(seed)
    prices = tuple(lively(price, rng) for price in pipeline.point.prices)
    recompute = "none" if schedule == "zero-bubble" else "auto"
    candidate = replace(
        pipeline.candidate, pp=2, microbatches=many, schedule=schedule, virtual_stages=virtual, recompute=recompute
    )
    stage_model = replace(pipeline, candidate=candidate, point=replace(pipeline.point, prices=prices)).stage_model
    size = len(stage_model.chain)
    stages = tuple(itertools.pairwise((0, *sorted(rng.sample(range(1, size), 2 * virtual - 1)), size)))
    counts = [int(stage_model.chain.repeated[slice(*at)].sum()) * (recompute == "auto") for at in stages]
    full = tuple(rng.randint(0, n) for n in counts)
    return stage_model, Division(stages, full, tuple(rng.randint(0, n - a) for n, a in zip(counts, full, strict=True)))


@pytest.mark.parametrize(("schedule", "virtual", "many"), SCHEDULES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_finished_candidate_needs_what_the_search_counted(seed: int, schedule: str, virtual: int, many: int) -> None:
    """And at its busiest moment holds no more."""
    stage_model, division = at_random(seed, schedule, virtual, many)
    assert any((rows == WAITING).any() for rows in stage_model.standing) == (schedule == "interleaved" and many == 2)
    finished = stage_model.memory_of(division.choices)
    if is_interleaved(schedule):
        counted = Divisions.of(division)
        held = chain_costs_of(stage_model, 0.0).before_recomputation(counted)
        ranks = np.maximum(held.recomputing(counted.full.T, counted.part.T), held.emptied)[:, 0]
    else:
        each, account = stage_model.needs(division.choices), stage_model.memory_account
        running = account.running(each) + account.gradients(each, ACCUMULATING)
        emptied = account.emptied(each) + account.gradients(each, SENDING)
        ranks = np.maximum(running + np.array(stage_model.in_flight) * each.flight, emptied)
    assert [one.total for one in finished] == pytest.approx(ranks.tolist(), abs=ROUNDED, rel=0)
    peaks = peaks_of(stage_model, division.choices, 2)
    assert all(peak.total <= one.total + ROUNDED for peak, one in zip(peaks, finished, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_every_run_of_segments_needs_what_its_stage_would(seed: int, recompute: str) -> None:
    stage_model, _ = at_random(seed, "1f1b", 1, 4)
    stage_model = replace(stage_model, candidate=replace(stage_model.candidate, recompute=recompute))
    account, runs = stage_model.memory_account, stage_model.runs
    size = len(stage_model.chain)
    for stage, first, last in itertools.product(range(2), range(size), range(size + 1)):
        if first < last:
            count = int(stage_model.chain.repeated[first:last].sum())
            mix = (count * (recompute == "full"), count * (recompute == "selective"))
            flying = stage_model.in_flight[stage] * runs.flight
            held = account.running(runs) + account.gradients(runs, ACCUMULATING) + flying
            counted = np.maximum(held, account.emptied(runs) + account.gradients(runs, SENDING))[first, last]
            needed = memory_of_stage(stage_model, stage, (first, last), *mix).total
            assert needed == pytest.approx(counted, abs=ROUNDED, rel=0)


ALONE = [(0, 1), (2, 4), (3, 1), (3, 4)]
"""(ZeRO, microbatches) of a chain that is one stage"""


def alone_at_random(seed: int, zero: int, many: int, recompute: str) -> StageModel:
    """A chain that is one stage, on ranks of the data axis."""
    rng, pipeline = random.Random(seed), random_pipeline(seed)
    prices = tuple(lively(price, rng) for price in pipeline.point.prices)
    candidate = Candidate(1, pipeline.candidate.pp, 1, 1, many, zero, "1f1b", recompute)
    return replace(pipeline, candidate=candidate, point=replace(pipeline.point, prices=prices)).stage_model


@pytest.mark.parametrize(("zero", "many"), ALONE)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_that_is_one_stage_holds_no_more_than_the_search_counted(seed: int, zero: int, many: int) -> None:
    """Whatever is recomputed: what a segment takes for a moment isn't beside what those behind it keep."""
    stage_model = alone_at_random(seed, zero, many, "auto")
    size, repeated = len(stage_model.chain), int(stage_model.chain.repeated.sum())
    for full in range(repeated + 1):
        for part in range(repeated + 1 - full):
            stages = (StageChoice(0, size, full, part),)
            (counted,), (peak,) = stage_model.memory_of(stages), peaks_of(stage_model, stages, 1)
            assert peak.total <= counted.total + ROUNDED, (full, part)


@pytest.mark.parametrize(("zero", "many"), ALONE)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_that_is_one_stage_fits_where_its_fullest_moment_does(seed: int, zero: int, many: int) -> None:
    """Nothing recomputed, the search's limit is what the report's peak is, but for the messages that nobody sends."""
    stage_model = alone_at_random(seed, zero, many, "none")
    stages = (StageChoice(0, len(stage_model.chain), 0, 0),)
    (counted,), (peak,) = stage_model.memory_of(stages), peaks_of(stage_model, stages, 1)
    first = float(stage_model.chain.inputs.max() + stage_model.chain.constants.max())
    gradients = stage_model.memory_account.gradients(stage_model.needs(stages), ACCUMULATING).item()
    assert counted.total - peak.total <= first + gradients + ROUNDED


@pytest.mark.parametrize("seed", SEEDS)
def test_what_fits_with_nothing_recomputed_fits_where_it_is_free(seed: int) -> None:
    pinned, free = (alone_at_random(seed, 3, 2, recompute) for recompute in ("none", "auto"))
    size = len(free.chain)
    (needed,) = pinned.memory_of((StageChoice(0, size, 0, 0),))
    enough, short = (free.options(0, needed.total + more) for more in (ROUNDED, -ROUNDED))
    assert np.isfinite(enough.seconds[0, size]) and enough.full[0, size] + enough.selective[0, size] == 0
    assert np.isinf(short.seconds[0, size]) or short.full[0, size] + short.selective[0, size] > 0


def rules_out(costs: ChainCosts, division: Division) -> bool:
    """Whether the program has no solution where it is held to a division, with every moment of every rank in it."""
    milp = PartitionMilp(costs, 1.0)
    for rank, moments in enumerate(costs.interleaved.held):
        milp.add_emptied(rank)
        for number in range(len(moments)):
            milp.add_moment(rank, number)
    for k, (first, _) in enumerate(division.stages):
        milp.lp.low[milp.q[k]] = milp.lp.high[milp.q[k]] = milp.runs.before[:, first]
    for stage, full, part in zip(range(costs.stages), division.full, division.part, strict=True):
        first, last = division.stages[stage]
        again = [n for n in range(first, last) if costs.repeated[n]]
        for of, count in ((milp.a, full), (milp.b, full + part)):
            for cell, (k, run) in enumerate(zip(*milp.cells, strict=True)):
                if k == stage:
                    mine = sum(np.diff(milp.runs.before[run])[again[:count]])
                    milp.lp.low[of[cell]] = milp.lp.high[of[cell]] = mine
    return bool(np.isinf(milp.solve().bound_s))


@pytest.mark.parametrize(("schedule", "virtual", "many"), SCHEDULES[2:])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_program_lets_a_division_pass_where_its_ranks_have_room(
    seed: int, schedule: str, virtual: int, many: int
) -> None:
    stage_model, division = at_random(seed, schedule, virtual, many)
    costs = chain_costs_of(stage_model, 1.0)
    needed = costs.over(division) + costs.memory_limit
    assert not rules_out(replace(costs, memory_limit=needed * 1.00001), division)
    if not costs.memory.shared_by(costs.ranks).any():
        assert rules_out(replace(costs, memory_limit=needed * 0.9999), division)


@pytest.mark.parametrize(
    ("zero", "piped", "stay"), [(1, True, True), (3, True, True), (2, False, False), (0, True, False)]
)
def test_shards_that_are_summed_over_another_axis_lie_in_buckets(zero: int, piped: bool, stay: bool) -> None:
    """From step to step, beside whole gradients where these are scattered once a step; else they are what is kept."""
    mesh = tensor_mesh(Candidate(1 + piped, 2, 2, 1, 4, zero, "1f1b", "none").mesh)
    data = DataAxis(zero, 2, Prices(mesh, ClusterSpec.parse("1x8 cpu").topology(), False, True, 4), piped)
    held = HeldParameters(((("whole", 64), ("split", 32)), (("split too", 16),)), {"whole": ("tp",)})
    assert held.bucketed(data).tolist() == ([data.prices.stored * 64 / 2, 0.0] if stay else [0.0, 0.0])
