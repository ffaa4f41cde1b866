"""Bounds that follow from how far two orders of summation are apart on one device."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from autoplan.verify.compare import FLOAT64, Worst
from autoplan.verify.conditioning import OtherOrder
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
