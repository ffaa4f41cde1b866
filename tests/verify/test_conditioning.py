"""Bounds that follow from how far two orders of summation are apart on one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autoplan
from autoplan import Training
from autoplan.verify import train_plan
from autoplan.verify.compare import FLOAT64, Worst
from autoplan.verify.conditioning import OtherOrder
from autoplan.verify.sharded import train_in_other_order
from autoplan.verify.single import random_state
from autoplan.verify.variants import in_float64
from autoplan.verify.verification import MOST, ORDERS, Verification


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3), nn.Flatten(), nn.Linear(256, 5)
    ).double()


def gradients(x: torch.Tensor) -> list[torch.Tensor]:
    module = network()
    F.cross_entropy(module(x), torch.arange(len(x)) % 5).backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def test_the_other_order_gives_the_same_but_for_rounding() -> None:
    x = torch.randn(6, 4, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    usual = gradients(x)
    with OtherOrder():
        other = gradients(x)
    for one, two in zip(usual, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)
    assert any(not torch.equal(one, two) for one, two in zip(usual, other, strict=True))


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6),
        nn.Conv2d(6, 12, 3, stride=2, padding=1, groups=6),
        nn.Conv2d(6, 9, (3, 2), padding=(2, 1), dilation=(2, 1), groups=3),
        nn.Conv1d(6, 6, 4, stride=3, groups=6),
        nn.ConvTranspose2d(6, 6, 3, stride=2, groups=6),
        nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2),
    ],
    ids=str,
)
def test_convolutions_of_groups_are_the_same_in_the_other_order(conv: nn.Module) -> None:
    conv = conv.double()
    size = (9, 8) if conv.weight.dim() == 4 else (13,)
    x = torch.randn(2, 6, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    usual = conv(x)
    with OtherOrder():
        torch.testing.assert_close(conv(x), usual, rtol=1e-12, atol=1e-14)


def test_a_window_is_summed_from_the_end_in_the_other_order() -> None:
    conv = nn.Conv2d(6, 6, 5, padding=2, groups=6).double()
    x = torch.randn(4, 6, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with OtherOrder():
        other = conv(x)
    assert not torch.equal(other, conv(x))


def verified(error: float, rounding: float) -> Verification:
    worst = Worst(error, "w")
    return Verification(4, Worst(0.0, "loss"), worst, worst, rounding=(rounding, rounding, rounding))


def test_a_bound_rises_with_rounding_alone() -> None:
    assert not verified(2e-9, 0.0).passed
    assert verified(2e-9, 1e-9).passed
    assert not verified(2e-9, 1e-11).passed
    assert [bound for _, _, bound, _ in verified(0.0, 1e-16).lines()] == [
        FLOAT64.loss, FLOAT64.gradients, FLOAT64.parameters
    ]  # fmt: skip
    assert [bound for _, _, bound, _ in verified(0.0, 1e-9).lines()][1] == ORDERS * 1e-9


def test_no_rounding_excuses_a_program_that_leaves_something_out() -> None:
    assert not verified(2 * MOST, 1.0).passed


def test_a_program_that_draws_runs_in_the_other_order_with_the_same_numbers() -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 8))
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    plan = autoplan.parallelize(
        module, "1x1 cpu", (batch,), loss_fn=lambda out: out.square().mean(), training=Training(compile=False)
    )
    record = in_float64(plan.record)
    inputs = {name: batch.double() for name in [given.name for given in record.model.batch]}
    state = random_state(record.model, 0)
    usual = train_plan(record, inputs, state)
    other = train_plan(record, inputs, state, train_in_other_order)
    for name, value in usual.parameters.items():
        torch.testing.assert_close(other.parameters[name], value, rtol=1e-10, atol=1e-12)
    assert any(not torch.equal(other.gradients[name], value) for name, value in usual.gradients.items())
