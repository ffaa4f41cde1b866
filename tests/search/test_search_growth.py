"""What a search spends on a model grows no faster than the model's operators do, and is bounded where they are many.

Work is counted in calls of Python functions, so that a busy machine changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.compile import traced_model
from autoplan.ir.graph import Model
from autoplan.models.inputs import resolve_inputs
from autoplan.options import Parallelism, Training
from autoplan.search import entry
from autoplan.search.budget import FULL
from autoplan.search.driver import best_plan
from autoplan.search.space.batch_moves import with_batch_moves
from autoplan.search.state import begin
from tests.support.sampling import slow

CLUSTER = ClusterSpec.parse("1x2 h100-sxm")
ROWS = (torch.zeros(8, 64), torch.zeros(8, 64))


class Long(nn.Module):
    """Two layers of many small operators each, as loops over a sequence are exported."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.layers = steps, nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = state = layer(x)
            for _ in range(self.steps):
                state = torch.tanh(state * x) + x
            x = state
        return (x - target).pow(2).mean()


def traced(steps: int) -> Model:
    module = Long(steps)
    return with_batch_moves(traced_model(module, resolve_inputs(module, ROWS, 2), None, Training()))


def calls_of(function: Callable[[], object]) -> int:
    count = 0

    def counts(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(counts)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.slow
def test_a_search_of_twice_the_operators_takes_about_twice_the_calls() -> None:
    models = [traced(steps) for steps in (40, 80)]
    assert sum(len(block.nodes) for block in models[1].blocks) > 1.8 * sum(len(b.nodes) for b in models[0].blocks)
    pins = Parallelism(tp=2)

    def planned(model: Model) -> None:
        assert best_plan(begin(model, CLUSTER, Training(), pins), pins) is not None

    few, many = (calls_of(partial(planned, model)) for model in models)
    assert many < 2.3 * few, f"{few} calls, then {many}"


def test_a_model_of_many_operators_is_searched_quickly_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "budget_of", lambda effort: replace(FULL, many_operators=3))
    plan = autoplan.parallelize(Long(2), CLUSTER, ROWS)
    report = " ".join(plan.report(verbose=True).split())
    assert "operators of their own for each microbatch, since the blocks have" in report


@pytest.mark.parametrize("most", [3, slow(1000)])
def test_what_a_pin_costs_is_found_quickly_where_there_are_many_operators(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "budget_of", lambda effort: replace(FULL, pin_operators=most))
    plan = autoplan.parallelize(Long(2), CLUSTER, ROWS, parallelism=Parallelism(dp=2))
    free = autoplan.parallelize(Long(2), CLUSTER, ROWS)
    first, costs = plan.alternatives[0], plan.predicted.step_time_s / free.predicted.step_time_s - 1
    assert first.name == ("nothing pinned, by a quick search" if most == 3 else "nothing pinned") and costs > 0
    assert first.step_time_s == pytest.approx(free.predicted.step_time_s)
    said = f"at least {100 * costs:.1f}% against" if most == 3 else f"pinned costs {100 * costs:.1f}% against"
    assert said in " ".join(plan.report(verbose=True).split())
