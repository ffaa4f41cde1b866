"""Named systems beside a plan, and what a pin costs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autoplan
from autoplan import Parallelism, Plan, pin
from autoplan.search.explain import alternatives
from autoplan.search.explain.pins import UNPINNED
from autoplan.search.space.systems import ASYNCHRONOUS, SYSTEMS


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.down(self.up(x).relu()) - target).pow(2).mean()


def planned(**options: object) -> Plan:
    batch = (torch.zeros(64, 32), torch.zeros(64, 32))
    return autoplan.parallelize(Rows(), "1x4 cpu", batch, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def free() -> Plan:
    return planned()


def test_every_system_is_priced_or_says_why_not(free: Plan) -> None:
    told = {a.name for a in free.alternatives}
    aliases = {"auto", "dp", "ddp", "zero3", "fsdp", "tensor-parallel"}  # the classical ones have names of their own
    assert told >= set(SYSTEMS) - aliases - {"1f1b", *ASYNCHRONOUS} and "plain data parallel" in told
    assert not told & set(ASYNCHRONOUS), "another training's steps are no alternatives"
    assert all(a.why_not or a.step_time_s > 0 for a in free.alternatives)


def test_those_that_fit_come_first_by_step_time(free: Plan) -> None:
    order = [(bool(a.why_not), a.over_bytes, a.step_time_s) for a in free.alternatives]
    assert order == sorted(order)
    best = free.predicted.step_time_s
    assert all(a.step_time_s >= best * (1 - 1e-9) for a in free.alternatives if not a.why_not and not a.over_bytes)


def test_a_named_system_costs_what_its_own_plan_does(free: Plan) -> None:
    priced = {a.name: a for a in free.alternatives}
    for name in ("zero1", "zero2"):
        alone = planned(parallelism=name).predicted
        assert priced[name].step_time_s == pytest.approx(alone.step_time_s)
        assert priced[name].peak_bytes == pytest.approx(max(memory.total for memory in alone.peak_bytes))
    own = planned(parallelism="megatron").predicted.step_time_s
    assert own <= priced["megatron"].step_time_s * (1 + 1e-9) <= 1.5 * own


def test_a_pin_shows_its_price(free: Plan) -> None:
    assert not any(a.name == UNPINNED for a in free.alternatives) and "Pins:" not in free.report(verbose=True)
    pinned = planned(parallelism=Parallelism(tp=4))
    first = pinned.alternatives[0]
    assert first.name == UNPINNED and first.parallelism == free.parallelism
    assert first.step_time_s == pytest.approx(free.predicted.step_time_s)
    costs = 100 * (pinned.predicted.step_time_s / free.predicted.step_time_s - 1)
    assert costs > 0 and f"Pins: tp=4 pinned costs {costs:.1f}% against " in pinned.report(verbose=True)


def test_a_pin_to_what_is_chosen_anyway_costs_nothing(free: Plan) -> None:
    same = planned(parallelism=Parallelism(dp=free.parallelism.dp))
    assert same.alternatives[0].name == UNPINNED
    assert f"dp={free.parallelism.dp} pinned costs nothing" in same.report(verbose=True)


def test_constraints_are_pins_too(free: Plan) -> None:
    held = planned(parallelism=Parallelism(tp=4), constraints=[pin("up", "R", "I")])
    assert held.alternatives[0].step_time_s == pytest.approx(free.predicted.step_time_s)
    assert "tp=4 and 1 constraint pinned costs " in held.report(verbose=True)


def test_a_quick_answer_has_the_classical_choices_alone() -> None:
    quick = planned(parallelism=Parallelism(tp=4), effort="fast")
    named = {a.name for a in quick.alternatives} & {*SYSTEMS, UNPINNED}
    assert not named and quick.record.asked.effort == "fast"


def test_grids_beside_a_large_model_are_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "GRID_NODES", 0)
    plan = planned()
    grid = next(a for a in plan.alternatives if a.name == "2d")
    assert grid.why_not == "not priced beside a plan: parallelism='2d' plans it"
    assert "2d (not priced" in plan.report(verbose=True)
