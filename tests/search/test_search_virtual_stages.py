"""Numbers of stages on a rank that aren't powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

from autoplan.cluster import ClusterSpec
from autoplan.options import Parallelism, Training
from autoplan.search.budget import FULL
from autoplan.search.driver import with_best_virtual_stages
from autoplan.search.entry import search
from autoplan.search.further.virtual_stages import other_virtual_stages
from autoplan.search.space.candidates import Candidate, SpaceLimits, all_candidates
from tests.support.hand_made import llama
from tests.support.planning import alone

PINNED = {"dp": 1, "tp": 1, "pp": 2, "micro_batch": 1, "pipeline_schedule": "interleaved"}


def step_s(layers: int, **more: int) -> tuple[float, int, tuple[str, ...]]:
    model = llama(layers=layers, batch=16, seq=512, hidden=1024, ffn=2816, heads=16, kv=16)
    cluster = ClusterSpec.parse("1x2 a100-sxm-80gb")
    with alone():
        chosen, _, report = search(model, cluster, Training(), Parallelism(**PINNED, **more))
    count = chosen.parallelism.virtual_stages
    assert count is not None and len(chosen.stages) == 2 * count
    return chosen.predicted.step_time_s, count, report.left_out


def test_those_between_are_found_where_layers_divide_by_them() -> None:
    """Ten layers on ten stages: four stages a rank have one layer or two."""
    free_s, count, left_out = step_s(10)
    assert count == 5 and not any("stages on a rank" in told for told in left_out)
    assert free_s < step_s(10, virtual_stages=4)[0]


def test_more_than_eight_are_found_where_each_has_one_layer() -> None:
    assert step_s(24)[1] == 12


def test_numbers_by_which_layers_divide_are_tried_of_plans_not_far_from_the_best() -> None:
    """Nemotron-340B on 512 H100: with two stages on a rank microbatches of one row are 4.5% slower than the best plan,
    and with twelve quicker."""
    limits = SpaceLimits(devices=16, node=8, rows=64, segments=50)
    asked = Parallelism(dp=1, tp=4, pp=4, zero=0, pipeline_schedule="interleaved", virtual_stages=2)
    best, near, far = (next(all_candidates(limits, replace(asked, micro_batch=rows))) for rows in (2, 1, 4))
    found = {s: SimpleNamespace(candidate=s, step_s=own) for s, own in ((best, 1.0), (near, 1.045), (far, 1.1))}
    sizes = SimpleNamespace(sizes=SimpleNamespace(repeated=48))
    work = SimpleNamespace(limits=limits, found=found, searched=set(found), operators=sizes, feasible=list)
    others = other_virtual_stages(work, Parallelism(), found[best])
    tried = {s: {o.virtual_stages for o in others if replace(o, virtual_stages=2) == s} for s in found}
    assert tried == {best: {3, 4, 6, 12}, near: {3, 4, 6, 12}, far: set()}
    assert all(plan is found[replace(o, virtual_stages=2)] for o, plan in others.items())
    assert other_virtual_stages(work, Parallelism(virtual_stages=2), found[best]) == {}


def searched_again(plans: Mapping[int, tuple[float, float]], again_s: float) -> tuple[list[int], int]:
    """(stages on a rank of the plans that are searched without a limit, of the one that is chosen then).

    plans    by stages on a rank seconds of a step that were found, and a bound on them; the first are the best plan's
    again_s  what such a search finds
    """
    limits = SpaceLimits(devices=16, node=8, rows=64, segments=50)
    asked = Parallelism(dp=1, tp=4, pp=4, zero=0, pipeline_schedule="interleaved")
    at = {v: next(all_candidates(limits, replace(asked, virtual_stages=v))) for v in plans}
    found = {at[v]: SimpleNamespace(candidate=at[v], step_s=own_s) for v, (own_s, _) in plans.items()}
    bounds_s = {at[v]: bound_s for v, (_, bound_s) in plans.items()}
    again: list[int] = []

    def evaluate(candidate: Candidate, memory_limit: float) -> SimpleNamespace:
        again.append(candidate.virtual_stages)
        return SimpleNamespace(candidate=candidate, step_s=again_s)

    work = SimpleNamespace(
        found=found, searched=set(found), budget=FULL, bounds={}, feasible=list, evaluate=evaluate,
        unlimited_s=bounds_s.__getitem__, operators=None,
    )
    best = found[at[next(iter(plans))]]
    chosen = with_best_virtual_stages(work, Parallelism(virtual_stages=4), best, 1.0)
    return again, chosen.candidate.virtual_stages


def test_plans_within_a_hair_of_the_best_are_searched_again_without_its_limit() -> None:
    """Nemotron-340B on 512 H100: twelve stages on a rank are 0.4% quicker than six, which are found first, and 0.2%
    slower where what takes longer than these is given up."""
    plans = {4: (1.0, 0.9), 8: (1.002, 0.95), 2: (1.02, 0.92)}
    assert searched_again(plans, 0.996) == ([8], 8)
    assert searched_again({4: plans[4], 2: plans[2]}, 0.996) == ([], 4)


def test_a_plan_that_was_given_up_is_searched_again_where_it_promises_as_much() -> None:
    """GPT 1T on 3,072 A100s: four stages on each of 32 ranks are 2% quicker than eight on each of 16, by whose limit
    their search is given up 12% above it."""
    assert searched_again({4: (1.0, 0.9), 8: (1.12, 0.903), 2: (1.1, 0.95)}, 0.977) == ([8], 8)


def test_layers_that_do_not_divide_are_no_slower_than_by_any_pin() -> None:
    free_s, _, _ = step_s(7)
    assert free_s <= min(step_s(7, virtual_stages=count)[0] for count in (2, 3, 4)) * 1.005
