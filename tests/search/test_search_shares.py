"""What ranks can hold of a chain: never more than any plan takes, by trying them all; and more than operators alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.cost.step import straggling
from autoplan.search.bounds.block_bounds import BlockBounds, rates_of
from autoplan.search.bounds.knapsack import knapsack_bound
from autoplan.search.candidate_costs import exposed
from autoplan.search.inter_op.chain_costs import chain_costs_of
from autoplan.search.inter_op.interleaved import DivisionSearch
from tests.support.pipelines import Pipeline, by_trial, random_pipeline, walls
from tests.support.sampling import slow

MOST = 1 + 1e-9


def known(pipeline: Pipeline) -> BlockBounds:
    """Of a pipeline whose operators run in one way."""
    prices, stage_model = pipeline.point.prices, pipeline.stage_model
    blocks = tuple(segment.block for segment in pipeline.evaluator.costs.operators.prepared.model.segments)
    own_s = np.array([prices[b].forward_s + prices[b].backward_s for b in blocks])

    def floor(block: int, state: float, kept: np.ndarray) -> np.ndarray:
        price = prices[block]
        states = state * sum(price.parameter_bytes)
        return price.forward_s + price.backward_s + kept * price.kept_bytes + states

    uses = {block: blocks.count(block) for block in blocks}
    chain = stage_model.chain
    return BlockBounds(stage_model, chain, own_s, blocks, floor, rates_of(prices, uses), chain.forward_s)


def bounded_s(pipeline: Pipeline, wall: float) -> tuple[float, float]:
    """(seconds of the schedule by the operators alone, and by what ranks hold of the chain)."""
    chain = pipeline.stage_model.chain
    candidate = pipeline.candidate
    rough_s = float((chain.forward_s + chain.backward_s).sum()) * candidate.microbatches / candidate.pp
    found = known(pipeline)
    return rough_s, knapsack_bound(found, found.stage_model, wall, rough_s)


def piped(seed: int) -> Pipeline:
    """A random pipeline on devices that nobody shares, its backward at most as it is priced."""
    pipeline = random_pipeline(seed)
    candidate = replace(pipeline.candidate, recompute="auto")
    return replace(pipeline, candidate=candidate)


@pytest.mark.parametrize("pipelines", [12, slow(36)])
def test_no_plan_of_a_pipeline_undercuts_it(pipelines: int) -> None:
    compared = tighter = 0
    for seed in range(pipelines):
        pipeline = piped(seed)
        topology = pipeline.evaluator.operators.topology
        if topology.device.sharers > 1:
            continue
        once = exposed(*pipeline.stage_model.once_s((0, len(pipeline.stage_model.chain)))) / pipeline.candidate.pp
        for wall in walls(pipeline):
            rough_s, schedule_s = bounded_s(pipeline, wall)
            slowed = straggling(topology.devices // topology.levels[0].size, topology.device)
            best = by_trial(pipeline, wall)
            if best is not None:
                assert (schedule_s + once) * slowed <= best.step_s * MOST
                compared += 1
                tighter += schedule_s > 1.02 * rough_s
    assert compared > 40 * pipelines / 36 and tighter > 20 * pipelines / 36


@pytest.mark.parametrize("pipelines", [6, slow(18)])
def test_no_cuts_into_several_stages_a_rank_undercut_it(pipelines: int) -> None:
    compared = tighter = 0
    for seed in range(pipelines):
        pipeline = piped(seed)
        if len(pipeline.stage_model.chain) < 5 or pipeline.evaluator.operators.topology.device.sharers > 1:
            continue
        candidate = replace(pipeline.candidate, pp=2, microbatches=4, schedule="interleaved", virtual_stages=2)
        pipeline = replace(pipeline, candidate=candidate)
        ample = chain_costs_of(pipeline.stage_model, 1e12)
        free = DivisionSearch(ample).run()
        assert free is not None
        held = ample.over(free.division) + ample.memory_limit
        for share in (0.6, 0.75, 0.9):
            rough_s, schedule_s = bounded_s(pipeline, share * held)
            found = DivisionSearch(chain_costs_of(pipeline.stage_model, share * held)).run()
            if found is not None:
                assert schedule_s <= found.cuts.objective_s * MOST
                compared += 1
                tighter += schedule_s > 1.02 * rough_s
    assert compared > 5 * pipelines / 18 and tighter > 0


@pytest.mark.parametrize("wall", [1.0, 1e5])
def test_where_nothing_fits_it_is_infinite(wall: float) -> None:
    assert bounded_s(piped(1), wall)[1] == float("inf")
